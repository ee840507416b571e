"""The environment of a process that starts a local Ray."""

import subprocess
import sys

STARTS_CHILDREN = """
import asyncio, signal, subprocess, threading
from headway_cli.cluster import prepare_environment

prepare_environment()
import ray
from grpc import aio

def unblocked():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

async def started():
    server = aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        await channel.channel_ready()
        children = [subprocess.Popen(["true"], preexec_fn=unblocked) for _ in range(300)]
        print([child.wait() for child in children].count(0))
    await server.stop(None)

asyncio.run(started())
"""
"""As Ray starts its processes. Without the environment some tens of these children crash, unnoticed."""


def test_no_child_crashes_in_a_fork_beside_grpc() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", STARTS_CHILDREN], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["300"], ran.stderr[-2000:]
