"""Hosts of one machine: network namespaces on a bridge, each with an address and a default route of its own.

    with network(("head", "prefill", "decode")) as hosts:
        hosts["head"].run(["ray", "start", "--head", ...])
        hosts["decode"].cut()

A host has its own network, and its own files below `mount`, which hosts of one machine would otherwise share.
Names and addresses are drawn by chance and compared with those in use, so that two runs do not meet. What was
made is removed at the end of the block, or when this process is killed: processes first.
"""

import ctypes
import ipaddress
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
CLONE_NEWNET = 0x40000000
ENDED_WITHIN_S, REMOVED_WITHIN_S = 10.0, 60.0
THREADS = 32
FIRST_HOST = 11
# One of its own for each host, at the same path on all: Ray wants that, and sockets need a short one.
INSIDE = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'


def refusal() -> str:
    """Empty, or why this machine makes no network namespaces."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if shutil.which("ip") is None:
        return "iproute2 is not installed"
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"hw-{secrets.token_hex(2)}-try"
    made = _quiet("ip", "netns", "add", name)
    if made.returncode == 0:
        made = _quiet("ip", "netns", "exec", name, "unshare", "-m", "true")
    _quiet("ip", "netns", "delete", name)
    return "" if made.returncode == 0 else f"no network namespaces here: {made.stderr.strip()}"


REMOVAL = """
read -r _
for namespace in $1; do
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    found=$(ip netns pids "$namespace") && [ -n "$found" ] || break
    kill -9 $found; sleep 0.2
  done
  ip netns delete "$namespace"
done
for link in $2; do ip link delete "$link"; done
rm -rf "$3"
"""


@dataclass(frozen=True, kw_only=True)
class Host:
    """One host: its namespace, its address, the end of its cable at the bridge, its files."""

    name: str
    namespace: str
    address: str
    cable: str
    files: Path
    mount: Path
    threads: ThreadPoolExecutor = field(repr=False)

    def command(self, words: Sequence[str]) -> list[str]:
        """The words that run a command on this host."""
        inside = ["unshare", "-m", "bash", "-c", INSIDE, "inside", str(self.files), str(self.mount)]
        return ["ip", "netns", "exec", self.namespace, *inside, *words]

    def start(self, words: Sequence[str], env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
        """A process on this host."""
        with log.open("ab") as output:
            return subprocess.Popen(
                self.command(words),
                cwd=ROOT,
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def run(self, words: Sequence[str], env: Mapping[str, str], timeout_s: float = 120.0) -> str:
        """A command's output; AssertionError with it where the command fails."""
        done = subprocess.run(
            self.command(words),
            check=False,
            cwd=ROOT,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        assert done.returncode == 0, f"{self.name}: {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def submit(self, work: Callable[[], T]) -> "Future[T]":
        """Work of a thread of this process that has the host's network."""
        return self.threads.submit(work)

    def call(self, work: Callable[[], T], timeout_s: float = 120.0) -> T:
        """The outcome of such work."""
        return self.submit(work).result(timeout=timeout_s)

    def pids(self) -> list[int]:
        """The processes of this host."""
        found = _quiet("ip", "netns", "pids", self.namespace)
        # Threads of this very process are not listed: it is in another namespace itself.
        return [int(word) for word in found.stdout.split() if int(word) != os.getpid()]

    def processes(self, title: str) -> list[int]:
        """Those of its processes whose command line begins so, such as `ray::Planner`."""
        return [pid for pid in self.pids() if _command_line(pid).startswith(title)]

    def cut(self) -> None:
        """Pull the cable: packets vanish, connections stay open."""
        _ip("link", "set", self.cable, "down")

    def mend(self) -> None:
        """Plug the cable in again."""
        _ip("link", "set", self.cable, "up")

    def die(self) -> None:
        """Lose power: `kill -9` of everything at once, unheard by the others."""
        self.cut()
        self.kill_all()

    def kill_all(self) -> None:
        """`kill -9` of all its processes."""
        until = time.monotonic() + ENDED_WITHIN_S
        while (pids := self.pids()) and time.monotonic() < until:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)


@contextmanager
def network(names: Sequence[str]) -> Iterator[dict[str, Host]]:
    """Hosts of these names on one bridge; gone at the end, with their processes and files."""
    run, folder = secrets.token_hex(2), Path(tempfile.mkdtemp(prefix="hw-", dir="/tmp"))
    bridge, hosts = f"hw{run}br", dict[str, Host]()
    mount = folder / "ray"
    mount.mkdir()
    cables = {name: f"hw{run}h{number}" for number, name in enumerate(names)}
    namespaces = {name: f"hw-{run}-{name}" for name in names}
    guard = _guard([*namespaces.values()], [*cables.values(), bridge], folder)
    try:
        network_address = _free_network()
        _ip("link", "add", bridge, "type", "bridge")
        _ip("address", "add", f"{network_address[1]}/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for number, name in enumerate(names):
            files = folder / name
            files.mkdir()
            namespace, cable = namespaces[name], cables[name]
            hosts[name] = Host(
                name=name,
                namespace=namespace,
                address=str(network_address[FIRST_HOST + number]),
                cable=cable,
                files=files,
                mount=mount,
                threads=ThreadPoolExecutor(THREADS, initializer=_enter, initargs=(namespace,)),
            )
            _ip("netns", "add", namespace)
            _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", namespace)
            _ip("link", "set", cable, "master", bridge)
            _ip("link", "set", cable, "up")
            inside = ("-n", namespace)
            _ip(*inside, "link", "set", "lo", "up")
            _ip(*inside, "address", "add", f"{hosts[name].address}/24", "dev", "eth0")
            _ip(*inside, "link", "set", "eth0", "up")
            _ip(*inside, "route", "add", "default", "via", str(network_address[1]))
        yield hosts
    finally:
        for host in hosts.values():
            host.threads.shutdown(wait=False, cancel_futures=True)
        guard.communicate(timeout=REMOVED_WITHIN_S)


def _guard(namespaces: Sequence[str], links: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    """A process that removes everything once this one closes its input, or dies however it may."""
    names = [" ".join(namespaces), " ".join(links), str(folder)]
    return subprocess.Popen(
        ["bash", "-c", REMOVAL, "guard", *names],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _free_network() -> ipaddress.IPv4Network:
    """A network of 254 addresses that no interface and no route of this machine has."""
    routes = _quiet("ip", "-4", "route", "show", "table", "all")
    used = []
    for word in routes.stdout.split():
        with suppress(ValueError):
            used.append(ipaddress.IPv4Network(word, strict=False))
    while True:
        found = ipaddress.IPv4Network((0x0A400000 + (secrets.randbelow(2**14) << 8), 24))
        if not any(found.overlaps(each) for each in used if each.prefixlen > 0):
            return found


def _enter(namespace: str) -> None:
    """Give the calling thread, and no other, that namespace's network."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as file:
        if libc.setns(file.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"no thread in {namespace}")


def _ip(*words: str) -> None:
    done = _quiet("ip", *words)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr.strip()}"


def _quiet(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, check=False, capture_output=True, text=True)


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
