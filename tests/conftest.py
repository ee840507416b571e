"""Settings of the whole suite."""

import gc
import json
import os
import signal
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from headway_cli.cluster import prepare_environment

# Before any test module imports Ray.
prepare_environment()
# Serve kills a proxy that takes 5 s to be ready, and its start fails by that; a busy machine may need longer.
os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")
# Ray gives its workers a niceness of 15: whatever else computes on the machine leaves them nearly nothing.
os.environ.setdefault("RAY_worker_niceness", "0")

# The same examples at every run: a failure that shows is one that shows again. How long a busy machine takes
# is no failure; nor are examples made of the numbers in whatever modules of ours a process has imported so
# far (hypothesis has no setting for that).
providers._get_local_constants = lambda: providers._local_constants
SLOW_IS_WELL = (HealthCheck.too_slow,)
for profile, examples in (("headway", 40), ("thorough", 200)):  # the second in `make test-all`
    settings.register_profile(
        profile,
        derandomize=True,
        deadline=None,
        suppress_health_check=SLOW_IS_WELL,
        max_examples=examples,
    )
settings.load_profile("headway")


COSTS = Path(__file__).with_name("costs.json")
"""Seconds of each module on a quiet machine, without its slow tests; `make costs` measures them anew."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run write the table of costs, and end in time."""
    parser.addoption("--write-costs", action="store_true", help="rewrite tests/costs.json by this run")
    parser.addoption("--until", type=float, help="Unix time from which no test begins; keeps the order given")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes longest first: no process begins with it last."""
    if config.getoption("--until") is not None:
        return
    costs: dict[str, float] = json.loads(COSTS.read_text(encoding="utf-8"))
    items.sort(key=lambda item: -costs.get(item.nodeid.partition("::")[0], 0.0))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what begins too late."""
    until_s = item.config.getoption("--until")
    if until_s is not None and time.time() > until_s:
        pytest.skip("not reached in time")


def pytest_collection_finish() -> None:
    """Thousands of tests and their modules stay: no later garbage collection has to go through them."""
    gc.collect()
    gc.freeze()


class CostTable:
    """Adds up what the modules of a run took, in whichever process."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        module = report.nodeid.partition("::")[0]
        self.seconds[module] = self.seconds.get(module, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        root = COSTS.parent.parent
        before = json.loads(COSTS.read_text(encoding="utf-8"))
        kept = {module: seconds for module, seconds in before.items() if (root / module).exists()}
        kept |= {module: round(seconds, 1) for module, seconds in self.seconds.items()}
        COSTS.write_text(json.dumps(dict(sorted(kept.items())), indent=0) + "\n", encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """A suite started in the background ignores SIGINT, and so would the commands that it interrupts."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--write-costs") and "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(CostTable())


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The event loop of tests that are coroutines."""
    return "asyncio"
