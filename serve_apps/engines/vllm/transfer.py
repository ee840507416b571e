"""vLLM's NixlConnector for CPUs, with a progress thread that sleeps. vLLM loads it, in the engine's process.

NIXL asks UCX for progress in a thread of its own. Its Python module has that thread poll without a pause
(`pthrDelay` 0 in `nixl._api` 1.5, and no option), which takes a core for each engine, idle or not: one of
those that engines compute on. UCX wakes the thread when something happens; the pause only bounds the wait.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from nixl._api import nixlBind
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import connector as original
from vllm.v1.kv_cache_interface import KVCacheConfig

PAUSE_US = 1000
"""NIXL rounds up to milliseconds."""


class NixlConnector(original.NixlConnector):  # type: ignore[misc]
    """As in vLLM, but for the pause."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        with _pausing_agents():
            super().__init__(vllm_config, role, kv_cache_config)


@contextmanager
def _pausing_agents() -> Iterator[None]:
    """Agents made in the block pause."""
    make = nixlBind.nixlAgent

    def pausing(name: str, config: nixlBind.nixlAgentConfig) -> nixlBind.nixlAgent:
        config.pthrDelay = PAUSE_US
        return make(name, config)

    nixlBind.nixlAgent = pausing
    try:
        yield
    finally:
        nixlBind.nixlAgent = make
