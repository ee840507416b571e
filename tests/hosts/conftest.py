"""A cluster of three hosts for all tests here. Those marked `long` need `-m long`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.namespaces import refusal
from tests.hosts.ray_hosts import RayHosts, ray_hosts, serve_file

READY_WITHIN_S = 300.0
"""On a loaded machine. Half a minute is usual."""


@pytest.fixture(scope="session")
def hosts_allowed() -> None:
    """Skip where this machine makes no hosts."""
    if reason := refusal():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def deployed(hosts_allowed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHosts]:
    """Headway on three hosts."""
    folder: Path = tmp_path_factory.mktemp("hosts")
    with ray_hosts(folder) as found:
        found.deploy(serve_file(folder))
        yield found


@pytest.fixture
def cluster(deployed: RayHosts) -> Iterator[RayHosts]:
    """Headway on three hosts, ready; whatever a test leaves broken is mended after it."""
    deployed.wait_until("a completion", lambda: deployed.complete() == 200, READY_WITHIN_S)
    deployed.wait_until("a planner", lambda: deployed.planner().get("state") == "running", READY_WITHIN_S)
    yield deployed
    deployed.mend()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is long, unless it is asked for."""
    if "long" not in (config.getoption("markexpr") or ""):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="long: run with -m long"))
