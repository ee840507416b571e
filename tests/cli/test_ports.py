"""Ports as the kernel tells them."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from headway_cli.errors import CliError
from headway_cli.ports import Port, listening

LISTENER = """
import socket, sys
held = [socket.create_server(("127.0.0.1", 0)), socket.create_server(("", 0))]
if socket.has_dualstack_ipv6():
    held.append(socket.create_server(("::", 0), family=socket.AF_INET6))
    held.append(socket.create_server(("::ffff:127.0.0.1", 0), family=socket.AF_INET6, dualstack_ipv6=True))
print(*(each.getsockname()[1] for each in held), flush=True)
sys.stdin.read()
"""


def test_the_ports_of_a_process_are_found_with_who_can_reach_them():
    # The last argument makes it look like an actor: that is how Ray names its processes.
    command = [sys.executable, "-c", LISTENER, "ray::Planner"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ports = [int(port) for port in process.stdout.readline().split()]
        found = {each.port: each for each in listening() if each.pid == process.pid}
        process.communicate()
    assert set(found) == set(ports)
    # gRPC binds IPv4 addresses in their IPv6 form, as the last one.
    mine = {ports[0], *ports[3:]}
    assert {found[port].reached_by for port in mine} == {"this machine"}
    assert found[ports[0]].kind == "actor or task: calls of Ray"
    assert {found[port].reached_by for port in ports[1:3]} == {"every network of this machine"}


def test_other_processes_are_none_of_ours():
    with socket.create_server(("127.0.0.1", 0)) as server:
        mine = [each for each in listening() if each.pid == os.getpid()]
        assert server.getsockname()[1] not in {each.port for each in mine}


def test_one_address_is_its_network(tmp_path: Path):
    port = Port(process="raylet", pid=1, address="192.0.2.7", port=80, kind="x")
    assert port.reached_by == "the network of 192.0.2.7"
    with pytest.raises(CliError, match="needs Linux"):
        listening(tmp_path)
