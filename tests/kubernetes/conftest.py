"""An API server double, and connectors to it."""

from collections.abc import Iterator
from typing import Any, Protocol

import pytest

from actors.connectors.kubernetes import KubernetesConnector
from headway.config import HeadwayConfig
from tests.kubernetes.api_server import ApiServer, serving
from tests.kubernetes.manifests import MODEL
from tests.patience import PATIENCE_S


class MakeConnector(Protocol):
    def __call__(self, **changes: Any) -> KubernetesConnector: ...


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with serving() as server:
        yield server


@pytest.fixture
def connect(api: ApiServer) -> MakeConnector:
    """Makes a connector to the double; its settings may be changed."""

    def make(
        timeout_s: float = PATIENCE_S,
        token: str | None = None,
        model: str = MODEL,
        pools: dict[str, Any] | None = None,
        **settings: Any,
    ) -> KubernetesConnector:
        kubernetes = {"namespace": "prod", "name": "llm", "api_url": api.url, **settings}
        tree: dict[str, Any] = {
            "model": model,
            "connector": {"kind": "kubernetes", "timeout_s": timeout_s, "kubernetes": kubernetes},
        }
        if pools is not None:
            tree["pools"] = pools
        return KubernetesConnector(HeadwayConfig.model_validate(tree), token=token)

    return make
