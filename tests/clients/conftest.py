"""Clients that others wrote, each in an environment of its own, against a gateway over a simulated engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.config import HeadwayConfig
from serve_apps.engines.vllm.tiny import build_tokenizer
from tests.clients.measured import MODEL, SPEED
from tests.gateway.one_engine import OneEngine
from tests.gateway.serving import Running, serving


@pytest.fixture(autouse=True)
def _no_keys_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADWAY_API_KEYS", raising=False)


@pytest.fixture
def gateway() -> Iterator[Running]:
    """One for each test: what it has counted is what the test's client did."""
    config = HeadwayConfig.model_validate(
        {"model": MODEL, "engine": {"time_scale": SPEED}, "pools": {"mixed": {}}}
    )
    with serving(config, OneEngine(config)) as running:
        yield running


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a tokenizer, for clients that make prompts of a length."""
    directory = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer(directory)
    return directory
