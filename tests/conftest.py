"""Settings of the whole suite."""

import os
import signal

import pytest
from hypothesis import settings

from headway_cli.cluster import prepare_environment

# Before any test module imports Ray.
prepare_environment()
# Serve kills a proxy that takes 5 s to be ready, and its start fails by that; a busy machine may need longer.
os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")

# The same examples at every run: a failure that shows is one that shows again.
settings.register_profile("headway", derandomize=True, deadline=None)
settings.load_profile("headway")


def pytest_configure() -> None:
    """A suite started in the background ignores SIGINT, and so would the commands that it interrupts."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The event loop of tests that are coroutines."""
    return "asyncio"
