"""What listens under `headway up` and `attach`, tried without the token, against the table of SECURITY.md."""

import http.client
import json
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest

from tests.ports import free_port
from tests.ray.clusters import headway

LOOPBACK = "127.0.0.1"
ROOT = Path(__file__).parents[2]
UP = """
engine: {profile: llama-3.1-8b_h100_tp1}
planner: {policy: static}
pools: {prefill: {max_replicas: 1}, decode: {max_replicas: 1}}
gateway: {port: 0}
"""
ATTACHED = """
model: nobody
metrics: {source: engines, preset: vllm, engines: {mixed: {addresses: ['127.0.0.1:9']}}}
pools: {mixed: {max_replicas: 2}}
connector: {kind: virtual}
gateway: {port: PORT}
"""
CALLS = (
    "/ray.rpc.NodeInfoGcsService/CheckAlive",
    "/ray.rpc.NodeManagerService/GetSystemConfig",
    "/ray.rpc.CoreWorkerService/PushTask",
    "/ray.rpc.ObjectManagerService/Push",
    "/ray.rpc.ObjectManagerService/Pull",
    "/ray.rpc.ReporterService/ReportOCMetrics",
    "/ray.serve.ASGIService/HandleRequest",
    "/ray.serve.ASGIService/HandleRequestWithRejection",
)
"""Of each kind of server that Ray and Serve have, one that does something."""

PARTS = (
    ("gcs_server", "GCS"),
    ("raylet/raylet", "raylet"),
    ("monitor.py", "autoscaler"),
    ("dashboard/dashboard.py", "dashboard"),
    ("ray::DashboardAgent", "dashboard agent"),
    ("ray::RuntimeEnvAgent", "runtime environment agent"),
    ("ray::ServeReplica", "replica"),
    ("ray::Router", "Router"),
    ("ray::", "actor"),
    ("headway_cli", "driver"),
)
"""Words of a command line, and what SECURITY.md calls that process; the first that fits."""


class Listener(NamedTuple):
    """An address, and what listens there."""

    part: str
    host: str
    port: int


def sockets() -> Mapping[str, tuple[str, int]]:
    """Where to connect to the listening sockets, by inode."""
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A":
                address, _, port = local.partition(":")
                # The kernel writes the four bytes of IPv4 from the last to the first; zeros are any address.
                host = socket.inet_ntoa(bytes.fromhex(address[-8:])[::-1])
                found[rest[5]] = (LOOPBACK if set(address) == {"0"} else host, int(port, 16))
    return found


def descendants(pid: int) -> Iterator[int]:
    """That process, and all that it or they started."""
    yield pid
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in listed.read_text().split():
                yield from descendants(int(child))


def listeners(pid: int) -> Sequence[Listener]:
    """Of all processes of a command."""
    known, found = sockets(), set()
    for each in descendants(pid):
        with suppress(OSError):
            command = Path(f"/proc/{each}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            part = next(name for words, name in PARTS if words in command)
            for link in Path(f"/proc/{each}/fd").iterdir():
                named = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(link))
                if named and named[1] in known:
                    found.add(Listener(part, *known[named[1]]))
    return sorted(found)


def answer(host: str, port: int) -> str:
    """What a stranger gets there: refused, metrics, closed, or open."""
    connection = http.client.HTTPConnection(host, port, timeout=10.0)
    try:
        connection.request("GET", "/metrics")
        said = connection.getresponse()
        return {401: "refused", 200: "metrics"}.get(said.status, "open") if said.read() else "open"
    except (http.client.HTTPException, OSError):
        return called(host, port)
    finally:
        connection.close()


def called(host: str, port: int) -> str:
    """The same of a server that does not speak HTTP/1."""
    codes = set()
    with grpc.insecure_channel(f"{host}:{port}") as channel:
        for call in CALLS:
            try:
                channel.unary_unary(call)(b"", timeout=10.0)
                return "open"
            except grpc.RpcError as error:
                codes.add(error.code())
    code = grpc.StatusCode
    if codes == {code.UNAVAILABLE}:
        return "closed"
    return "refused" if codes == {code.UNAUTHENTICATED, code.UNIMPLEMENTED} else f"open: {codes}"


def documented() -> set[tuple[str, str]]:
    """Process and answer, of the rows of the table; a row may have several of both."""
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    rows = [line.strip().strip("|").split("|") for line in text.splitlines() if line.strip().startswith("| ")]
    answers = {"refused": "refused", "readable": "metrics", "closes": "closed"}
    return {
        (part, kind)
        for processes, *_, without in (row for row in rows if len(row) == 4)
        for _, part in PARTS
        for word, kind in answers.items()
        if word in without and re.search(rf"\b{part}s?\b(?! agent)", processes)
    }


@contextmanager
def started(verb: str, tmp_path: Path, environment: dict[str, str]) -> Iterator[tuple[int, int]]:
    """The process of the command, and the port that it is told of."""
    config = tmp_path / "mine.yaml"
    config.write_text(UP if verb == "up" else ATTACHED.replace("PORT", str(free_port())), encoding="utf-8")
    began = headway(environment, verb, config, "--detach")
    try:
        assert began.returncode == 0, began.stderr
        state = json.loads((tmp_path / "state/headway/up.json").read_text(encoding="utf-8"))
        yield state["pid"], int(state["url"].rpartition(":")[2])
    finally:
        headway(environment, "down")


@pytest.mark.parametrize("verb", ["up", "attach"])
def test_what_listens_asks_for_the_token_or_is_named(
    verb: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    with started(verb, tmp_path, environment) as (pid, gateway):
        found = listeners(pid)
        assert {"GCS", "raylet", "replica", "driver", "dashboard agent"} <= {each.part for each in found}
        answers = {each: answer(each.host, each.port) for each in found}
    (ours,) = [each for each in found if each.port == gateway]
    assert answers.pop(ours) == "metrics"
    wrong = {each: said for each, said in answers.items() if (each.part, said) not in documented()}
    assert not wrong
