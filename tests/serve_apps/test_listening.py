"""Ports of the gateway: the next free one, or that of the gateway before it, which hands it over."""

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
import uuid

import pytest

from serve_apps import http_server
from serve_apps.http_server import Listener, listening_socket, open_listener
from tests.patience import PATIENCE_S
from tests.ports import free_port

pytestmark = pytest.mark.anyio

HOST = "127.0.0.1"
PREDECESSOR = """
import asyncio, sys
from serve_apps.http_server import open_listener

async def main():
    found = await open_listener("127.0.0.1", int(sys.argv[2]), sys.argv[1], 1.0)
    print(found.clients.getsockname()[1], flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


def port_of(listening: socket.socket) -> int:
    return int(listening.getsockname()[1])


@pytest.fixture
def place() -> str:
    return uuid.uuid4().hex


def test_a_port_that_is_taken_is_left_to_its_owner() -> None:
    with listening_socket(HOST, 0) as first, listening_socket(HOST, port_of(first)) as other:
        assert port_of(other) != port_of(first)


def test_a_port_of_somebody_who_shares_with_all_is_left_to_them() -> None:
    with socket.socket() as proxy:
        proxy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        proxy.bind((HOST, 0))
        proxy.listen()
        with listening_socket(HOST, port_of(proxy)) as ours:
            assert port_of(ours) != port_of(proxy)


def test_nobody_shares_ours_later_as_the_proxies_of_ray_serve_would() -> None:
    with listening_socket(HOST, 0) as ours, socket.socket() as proxy:
        proxy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with pytest.raises(OSError, match="in use"):
            proxy.bind((HOST, port_of(ours)))


async def test_the_next_one_is_handed_the_socket_that_listens(place: str) -> None:
    with predecessor(place) as process:
        port = first_line(process)
        found = await open_listener(HOST, port, place, PATIENCE_S)
        assert port_of(found.clients) == port
        waiting = socket.create_connection((HOST, port), timeout=PATIENCE_S)
        process.kill()
        process.wait()
        # What waited before the first one ended was in a queue that both had; so is what comes then.
        late = socket.create_connection((HOST, port), timeout=PATIENCE_S)
        for each in (waiting, late, found.clients.accept()[0], found.clients.accept()[0]):
            each.close()
        # The third one asks the second.
        third = await open_listener(HOST, port, place, PATIENCE_S)
        assert port_of(third.clients) == port
        for one in (found, third):
            await ended(one)


async def test_a_predecessor_that_hangs_is_waited_for_until_it_ends(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "ANSWERS_WITHIN_S", 0.2)
    with predecessor(place) as process:
        port = first_line(process)
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(OSError, match=f"holds port {port}") as refusal:
            await open_listener(HOST, port, place, 0.5)
        assert refusal.value.errno == errno.EADDRINUSE
        opening = asyncio.create_task(open_listener(HOST, port, place, PATIENCE_S))
        await asyncio.sleep(0.5)
        assert not opening.done()
        process.kill()
        found = await opening
        assert port_of(found.clients) == port
        await ended(found)


async def test_a_predecessor_that_hangs_for_long_is_ended(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "ANSWERS_WITHIN_S", 0.2)
    monkeypatch.setattr(http_server, "HUNG_S", 0.5)
    with predecessor(place) as process, predecessor(uuid.uuid4().hex) as stranger:
        port = first_line(process)
        first_line(stranger)
        for each in (process, stranger):
            os.kill(each.pid, signal.SIGSTOP)
        found = await open_listener(HOST, port, place, PATIENCE_S)
        assert port_of(found.clients) == port
        assert process.wait(PATIENCE_S) == -signal.SIGKILL
        # Another's place is not ours.
        assert stranger.poll() is None
        await ended(found)


async def test_another_port_than_the_predecessors_is_our_own(place: str) -> None:
    with predecessor(place) as process, listening_socket(HOST, 0) as free:
        port, wished = first_line(process), port_of(free)
        free.close()
        if wished <= port < wished + http_server.PORTS_TRIED:
            pytest.skip("the system gave two ports that are neighbours")
        found = await open_listener(HOST, wished, place, PATIENCE_S)
        assert port_of(found.clients) == wished
        await ended(found)


def predecessor(place: str) -> "subprocess.Popen[str]":
    program = [sys.executable, "-c", PREDECESSOR, place, str(free_port())]
    return Ending(program, stdout=subprocess.PIPE, text=True)


class Ending(subprocess.Popen[str]):
    """Killed at the end of its block."""

    def __exit__(self, *raised: object) -> None:
        self.kill()
        super().__exit__(*raised)


def first_line(process: "subprocess.Popen[str]") -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


async def ended(found: Listener) -> None:
    await found.close()
    found.clients.close()
