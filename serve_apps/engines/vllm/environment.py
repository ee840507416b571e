"""What vLLM, NIXL and UCX read from environment variables, set before vLLM is loaded.

    VLLM_NIXL_SIDE_CHANNEL_HOST, _PORT   where decode replicas ask this one how to read its KV
    OMP, UCX                             one thread per engine and plain memory on CPUs

What somebody has set already stays, but for the side channel, which must be this replica's alone.
"""

import os
import socket
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from headway.config import VllmSettings

ALWAYS: Mapping[str, str] = {"VLLM_NO_USAGE_STATS": "1"}
ON_CPU: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "UCX_TLS": "tcp,self,sysv,posix,cma",
    # With it the executor "uni" keeps to the engine's process, which is one of its own all the same.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}

QUIET: Mapping[str, str] = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "NIXL_LOG_LEVEL": "ERROR",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TORCH_LOGS": "-torch._library.triton",  # else it says that there is no Triton
    "PYTHONWARNINGS": "ignore::FutureWarning",
}


@contextmanager
def quiet() -> Iterator[None]:
    """For commands, whose output is their own: vLLM that is loaded in the block only logs errors."""
    missing = {name: value for name, value in QUIET.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        for name in missing:
            del os.environ[name]


def prepare(settings: VllmSettings, *, on_cpu: bool) -> socket.socket:
    """Set the variables; the socket that keeps the side channel's port for this process, while it lives."""
    for name, value in {**ALWAYS, **(ON_CPU if on_cpu else {})}.items():
        os.environ.setdefault(name, value)
    if settings.host is not None:
        os.environ["VLLM_HOST_IP"] = settings.host
    keeper = reserve_port()
    os.environ["VLLM_NIXL_SIDE_CHANNEL_HOST"] = settings.host or _own_address()
    os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(keeper.getsockname()[1])
    return keeper


def reserve_port() -> socket.socket:
    """A socket bound to a free port that never listens.

    The kernel gives the port to nobody who asks for any; who asks for it by number and with SO_REUSEADDR, as
    ZeroMQ does, may listen on it. Loading an engine takes a minute, in which a port that was only free a
    moment ago may go to somebody else.
    """
    keeper = socket.socket()
    keeper.bind(("", 0))
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return keeper


def _own_address() -> str:
    from vllm.utils.network_utils import get_ip

    return str(get_ip())
