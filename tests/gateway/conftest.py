"""One served gateway per script of the backend."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from headway.config import HeadwayConfig
from tests.gateway.doubles import ScriptedBackend, Step
from tests.gateway.serving import Running, serving
from tests.patience import patient_clients

Serve = Callable[..., Running]


@pytest.fixture(autouse=True)
def _no_keys_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADWAY_API_KEYS", raising=False)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    patient_clients(monkeypatch)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """`serve(script, **gateway settings)`: a gateway over a scripted backend."""
    with contextlib.ExitStack() as stack:

        def start(script: list[Step] | ScriptedBackend, **settings: Any) -> Running:
            backend = script if isinstance(script, ScriptedBackend) else ScriptedBackend(script)
            config = HeadwayConfig.model_validate({"model": "m", "gateway": settings})
            return stack.enter_context(serving(config, backend))

        yield start


@contextlib.contextmanager
def client(running: Running, **options: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{running.url}/v1", **{"api_key": "none", "max_retries": 0} | options
    ) as made:
        yield made
