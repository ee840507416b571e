"""A real kube-apiserver with its etcd, and nothing else: no controllers, no scheduler, no nodes.

`tests/kube/build.sh` builds the binary. Who acts as what:

    admin      writes objects, and the status that controllers and kubelets would write (`Kubelet`)
    headway    the service account of examples/kubernetes/rbac.yaml, with those rights and no others
    human, hpa others who edit, with the names under which the server records them
"""

import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import urllib3
import yaml
from urllib3.exceptions import HTTPError

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("HEADWAY_KUBE_CACHE", ROOT / ".cache" / "kube"))
BINARY = CACHE / "kube-apiserver"
NAMESPACE = "llm"
ACCOUNTS = {
    "admin": ("admin", "system:masters"),
    "headway": (f"system:serviceaccount:{NAMESPACE}:headway", "system:serviceaccounts"),
    "other": (f"system:serviceaccount:{NAMESPACE}:other", "system:serviceaccounts"),
}
START_S = 180.0


def missing() -> str:
    """Why no API server can be started here; empty if one can."""
    if not BINARY.exists():
        return f"{BINARY} is not there: tests/kube/build.sh builds it (make test-kube)"
    return "" if shutil.which("etcd") else "etcd is not installed"


class KubeCluster:
    """etcd and an API server below one directory, on free ports of loopback."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._etcd_port, self._port = _free_port(), _free_port()
        self._etcd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        (directory / "tokens.csv").write_text(
            "".join(f'{name},{user},{name},"{group}"\n' for name, (user, group) in ACCOUNTS.items())
        )
        subprocess.run(
            ["openssl", "genrsa", "-out", str(directory / "sa.key"), "2048"], check=True, capture_output=True
        )

    def start(self) -> None:
        """Both processes; returns when the server is ready."""
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{_free_port()}"
        # No fsync for a store that lives as long as a test.
        self._etcd = self._run(
            "etcd",
            *("--data-dir", str(self._directory / "etcd"), "--unsafe-no-fsync", "--log-level", "error"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"default={peer}"),
        )
        self.start_server()

    def start_server(self) -> None:
        """The API server, at the same port as before."""
        directory = self._directory
        key = str(directory / "sa.key")
        self._server = self._run(
            str(BINARY),
            *("--etcd-servers", f"http://127.0.0.1:{self._etcd_port}"),
            *("--bind-address", "127.0.0.1", "--secure-port", str(self._port)),
            *("--cert-dir", str(directory / "certs")),
            *("--service-account-key-file", key, "--service-account-signing-key-file", key),
            *("--service-account-issuer", "https://kubernetes.default.svc"),
            *("--token-auth-file", str(directory / "tokens.csv"), "--authorization-mode", "RBAC"),
            *("--service-cluster-ip-range", "10.0.0.0/24", "--disable-admission-plugins", "ServiceAccount"),
        )
        wait_until(self._answers, START_S)

    def stop_server(self, *, kill: bool = False) -> None:
        """End the API server; etcd keeps what it has."""
        _end(self._server, kill=kill)

    def stop(self) -> None:
        """End both."""
        _end(self._server)
        _end(self._etcd)

    def kubeconfig(self, account: str) -> str:
        """A kubeconfig file of an account."""
        path = self._directory / f"{account}.kubeconfig"
        cluster = {
            "server": f"https://127.0.0.1:{self._port}",
            "certificate-authority": str(self._directory / "certs" / "apiserver.crt"),
        }
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": account}}],
            "clusters": [{"name": "here", "cluster": cluster}],
            "users": [{"name": account, "user": {"token": account}}],
        }
        path.write_text(yaml.safe_dump(document))
        return str(path)

    def objects(self, account: str = "admin") -> "Objects":
        """The API as an account sees it."""
        return Objects(
            f"https://127.0.0.1:{self._port}", account, self._directory / "certs" / "apiserver.crt"
        )

    def _answers(self) -> bool:
        assert self._server is not None
        if self._server.poll() is not None:
            raise AssertionError((self._directory / "log").read_text(errors="replace")[-2000:])
        if not (self._directory / "certs" / "apiserver.crt").exists():
            return False
        objects = self.objects()
        try:
            objects.call("GET", "/api/v1/namespaces/default")
        except (ApiError, HTTPError, OSError):
            return False
        finally:
            objects.close()
        return True

    def _run(self, *command: str) -> subprocess.Popen[bytes]:
        with (self._directory / "log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)


class ApiError(Exception):
    """The server's answer was an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class Objects:
    """Requests of one account, by path."""

    def __init__(self, url: str, token: str, authority: Path) -> None:
        self._url, self._token = url, token
        self._pool = urllib3.PoolManager(ca_certs=str(authority), retries=False, timeout=5.0)
        self.made: list[str] = []

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    def create(self, collection: str, manifest: Mapping[str, Any]) -> str:
        """POST to a collection; the object's path, which `made` notes."""
        self.call("POST", collection, manifest)
        path = f"{collection}/{manifest['metadata']['name']}"
        self.made.append(path)
        return path

    def delete(self, path: str) -> None:
        """DELETE at once; one that is gone already is fine."""
        with suppress(ApiError):
            self.call(
                "DELETE",
                path,
                {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"},
            )

    def apply(self, collection: str, *manifests: Mapping[str, Any]) -> None:
        """POST to a collection; one that is there stays."""
        for manifest in manifests:
            try:
                self.call("POST", collection, manifest)
            except ApiError as error:
                if error.status != 409:
                    raise

    def call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, manager: str = "test"
    ) -> dict[str, Any]:
        """Any request; `manager` is the name that the server records for an edit."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        answer = self._pool.request(
            method,
            f"{self._url}{path}"
            + ("" if method == "GET" else f"{'&' if '?' in path else '?'}fieldManager={manager}"),
            body=None if body is None else json.dumps(body),
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": kind},
        )
        if answer.status >= 400:
            raise ApiError(answer.status, answer.data.decode(errors="replace")[:500])
        document: dict[str, Any] = json.loads(answer.data)
        return document


class Kubelet:
    """Plays controllers and kubelets: what `settle` says of each object becomes its status, all the time.

    `paths` are objects; `settle(manifest)` gives the status they should have now, None to leave it.
    """

    def __init__(
        self, objects: Objects, paths: list[str], settle: Callable[[dict[str, Any]], dict[str, Any] | None]
    ) -> None:
        self._objects, self._paths, self._settle = objects, paths, settle
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="kubelet", daemon=True)

    def _work(self) -> None:
        while not self._stopped.wait(0.1):
            for path in self._paths:
                # The server may be down, or the object may have changed: the next round sees.
                with suppress(ApiError, HTTPError, OSError):
                    manifest = self._objects.call("GET", path)
                    status = self._settle(manifest)
                    if status is not None and status != manifest.get("status"):
                        body = {"status": {**dict.fromkeys(manifest.get("status") or {}), **status}}
                        self._objects.call("PATCH", f"{path}/status", body)

    @contextmanager
    def working(self) -> Iterator[None]:
        """For the length of the block."""
        self._thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            self._thread.join(10)


def settled(manifest: dict[str, Any]) -> dict[str, Any]:
    """All replicas ready at once."""
    count = manifest["spec"].get("replicas", 1)
    return {"replicas": count, "readyReplicas": count} if count else {"replicas": 0}


def wait_until(holds: Callable[[], bool], within_s: float) -> None:
    """Ask again until it holds."""
    end_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end_s, f"not within {within_s:g} s"
        time.sleep(0.1)


def _end(process: subprocess.Popen[bytes] | None, *, kill: bool = False) -> None:
    if process is not None and process.poll() is None:
        process.kill() if kill else process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port
