"""Settings of the whole suite."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from headway_cli.cluster import prepare_environment

# Before any test module imports Ray.
prepare_environment()
# Serve kills a proxy that takes 5 s to be ready, and its start fails by that; a busy machine may need longer.
os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")

# The same examples at every run: a failure that shows is one that shows again. How long a busy machine takes
# is no failure; nor are examples made of the numbers in whatever modules of ours a process has imported so
# far (hypothesis has no setting for that).
providers._get_local_constants = lambda: providers._local_constants
SLOW_IS_WELL = (HealthCheck.too_slow,)
settings.register_profile("headway", derandomize=True, deadline=None, suppress_health_check=SLOW_IS_WELL)
settings.load_profile("headway")


SLOW = (
    "benchmarks",
    "cli",
    "clients",
    "cluster",
    "conformance/test_predictors.py",
    "engine/test_live_engine.py",
    "gateway/test_attacks.py",
    "hosts",
    "planning/replay",
    "planning/test_hindsight_extremes.py",
    "planning/test_policy_conformance.py",
    "predictors/test_latency_training.py",
    "ray",
    "routing/test_capacity.py",
    "routing/test_router_properties.py",
    "simulation",
    "studies",
    "vllm",
)
"""Folders and modules that `make test-fast` leaves out: they compile, simulate, or start processes."""


LONGEST = (
    "conformance/test_metric_sources.py",
    "planning/test_policy_conformance.py",
    "predictors/test_latency_training.py",
    "ray/test_must_hold.py",
    "ray/test_starting.py",
    "ray/test_outside_systems.py",
    "ray/test_nodes_lost.py",
    "ray/test_up_and_down.py",
    "ray/test_attach.py",
    "ray/test_advice.py",
)
"""Modules that take so long that no process may begin with them last."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow, by its place, and put what takes longest first."""
    here = Path(__file__).parent
    longest = [here / place for place in LONGEST]
    items.sort(key=lambda item: item.path not in longest)
    slow = [here / place for place in SLOW]
    for item in items:
        if any(item.path == place or place in item.path.parents for place in slow):
            item.add_marker("slow")


def pytest_configure() -> None:
    """A suite started in the background ignores SIGINT, and so would the commands that it interrupts."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The event loop of tests that are coroutines."""
    return "asyncio"
