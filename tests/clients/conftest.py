"""Clients that others wrote, each in an environment of its own, against a gateway over a simulated engine."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from headway.config import HeadwayConfig
from serve_apps.engines.vllm.tiny import build_tokenizer
from tests.clients.measured import MODEL, SPEED
from tests.gateway.one_engine import OneEngine
from tests.gateway.serving import Running, serving

Serve = Callable[..., Running]


@pytest.fixture(autouse=True)
def _no_keys_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADWAY_API_KEYS", raising=False)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """`serve(**gateway settings)`: a gateway for this test alone, whose counts are of the test's client."""
    with ExitStack() as stack:

        def start(**settings: Any) -> Running:
            config = HeadwayConfig.model_validate(
                {
                    "model": MODEL,
                    "engine": {"time_scale": SPEED},
                    "pools": {"mixed": {}},
                    "gateway": settings,
                }
            )
            return stack.enter_context(serving(config, OneEngine(config)))

        yield start


@pytest.fixture
def gateway(serve: Serve) -> Running:
    return serve()


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a tokenizer, for clients that make prompts of a length."""
    directory = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer(directory)
    return directory
