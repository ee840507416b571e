"""The ports on which Ray and Headway listen on this machine, as the kernel says: `headway status --ports`.

Read from /proc: the sockets that listen (state 0A of net/tcp and net/tcp6), and whose they are (the inodes
among the open files of each process). Processes of other users are only seen by root. The ports of another
host are those that the command shows there.
"""

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path

from rich.console import RenderableType

from headway_cli.errors import CliError
from headway_cli.terminal import table

LISTENING = "0A"
PROC = Path("/proc")

KINDS = (
    ("ray::ServeReplica:", "replica: calls of Ray"),
    ("ray::ProxyActor", "Serve's proxy: HTTP, calls of Ray"),
    ("ray::ServeController", "Serve's controller: calls of Ray"),
    ("ray::DashboardAgent", "agent: metrics, calls of Ray, HTTP"),
    ("ray::RuntimeEnvAgent", "runtime environments: HTTP"),
    ("ray::", "actor or task: calls of Ray"),
    ("gcs_server", "Ray's global store: calls of Ray"),
    ("raylet", "scheduler and object store: calls of Ray"),
    ("dashboard/dashboard.py", "dashboard: HTTP, metrics"),
    ("autoscaler/_private/monitor.py", "autoscaler: metrics"),
    ("headway_cli", "this program: calls of Ray"),
)
"""A part of the command line of each kind of process, and what listens there; the first that fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One listening socket of a process."""

    process: str
    pid: int
    address: str
    port: int
    kind: str

    @property
    def reached_by(self) -> str:
        """Those who can connect."""
        found = ip_address(self.address)
        if found.is_loopback:
            return "this machine"
        return "every network of this machine" if found.is_unspecified else f"the network of {found}"


def listening(proc: Path = PROC) -> list[Port]:
    """All of them, by process and port. CliError where the kernel does not say."""
    sockets = {inode: place for table in ("tcp", "tcp6") for inode, place in _sockets(proc / "net" / table)}
    if not sockets and not (proc / "net" / "tcp").exists():
        raise CliError("--ports: there is no /proc/net/tcp here; it needs Linux")
    found = (port for pid in _pids(proc) for port in _of(proc, pid, sockets))
    return sorted(found, key=lambda port: (port.process, port.pid, port.port))


def ports_table(ports: list[Port]) -> RenderableType:
    """The ports as rows."""
    rows = (
        (port.process, str(port.pid), port.address, str(port.port), port.kind, port.reached_by)
        for port in ports
    )
    return table(("process", "pid", "address", "port", "what", "reached by"), rows, dense=False)


def _pids(proc: Path) -> list[int]:
    return [int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal()]


def _of(proc: Path, pid: int, sockets: dict[str, tuple[str, int]]) -> Iterator[Port]:
    """The ports of one process; none for one that is not Ray's, or gone meanwhile."""
    try:
        line = (
            (proc / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        )
        kind = next((text for part, text in KINDS if part in line), None)
        if kind is None:
            return
        files = [entry.readlink().name for entry in (proc / str(pid) / "fd").iterdir()]
    except OSError:
        return
    process = line if line.startswith("ray::") else _program(line)
    for name in files:
        if name.startswith("socket:["):
            place = sockets.get(name[8:-1])
            if place is not None:
                yield Port(process=process, pid=pid, address=place[0], port=place[1], kind=kind)


def _program(line: str) -> str:
    """The name of a program by its command line."""
    words = line.split(" ")
    python = Path(words[0]).name.startswith("python")
    script = next((word for word in words[1:] if python and word.endswith(".py")), None)
    if "headway_cli" in line:
        return "headway"
    return Path(script or words[0]).name


def _sockets(path: Path) -> Iterator[tuple[str, tuple[str, int]]]:
    """Inode, address and port of each socket that listens."""
    try:
        lines = path.read_text().splitlines()[1:]
    except OSError:
        return
    for line in lines:
        fields = line.split()
        if fields[3] == LISTENING:
            host, _, port = fields[1].partition(":")
            yield fields[9], (_address(host), int(port, 16))


def _address(text: str) -> str:
    """`0100007F` → `127.0.0.1`: words of four bytes in the order of this machine."""
    words = [text[at : at + 8] for at in range(0, len(text), 8)]
    packed = b"".join(struct.pack("=I", int(word, 16)) for word in words)
    found = ip_address(socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed))
    # gRPC binds IPv4 addresses in their IPv6 form.
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return str(mapped or found)
