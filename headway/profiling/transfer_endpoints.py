"""Two vLLM servers as a pair: the prefill and the decode side of a disaggregated deployment, over HTTP.

The protocol is that of vLLM's own proxies (`kv_transfer_params` in requests and answers of
`/v1/completions`): the prefill side is asked for one token and to keep the KV, its answer says where that is,
and the decode side gets this with the request. Both sides are `vllm serve` with a `--kv-transfer-config` of
one connector, such as NixlConnector.

Where the decode side's `/metrics` counts the tokens that came from elsewhere
(`vllm:prompt_tokens_by_source_total`), a transfer that did not happen is an error, not a short time.
"""

import json
import re
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import aiohttp

from headway.loadgen.client import Clock, error_text
from headway.loadgen.plan import LoadPlan, authorisation, base_url
from headway.profiling import TargetError
from headway.profiling.sweep.endpoint import OpenAiTarget
from headway.profiling.transfer import Handover

KEEP_KV: Mapping[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
EXTERNAL = re.compile(
    r'^vllm:prompt_tokens_by_source_total\{[^}]*source="external_kv_transfer"[^}]*\} (\S+)', re.MULTILINE
)
BYTES = re.compile(r"^vllm:nixl_bytes_transferred_sum(?:\{[^}]*\})? (\S+)", re.MULTILINE)


class EndpointPair:
    """The pair; enter it before use. `decode` has the address and the model of the decode side."""

    def __init__(self, prefill_url: str, decode: LoadPlan, clock: Clock) -> None:
        self._prefill_url, self._decode_plan, self._clock = base_url(prefill_url), decode, clock
        self._decode = OpenAiTarget(decode, clock)
        self._session: aiohttp.ClientSession | None = None
        self._metrics: Mapping[str, float] = {}
        self._handed_tokens = 0

    async def __aenter__(self) -> Self:
        """Open connections, and read the decode side's counters. Raises TargetError."""
        await self._decode.__aenter__()
        timeout = aiohttp.ClientTimeout(total=self._decode_plan.timeout_s)
        headers = authorisation(self._decode_plan.api_key)
        self._session = aiohttp.ClientSession(timeout=timeout, headers=headers)
        self._metrics = await self._counters()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close connections."""
        if self._session is not None:
            await self._session.close()
        await self._decode.__aexit__(kind, error, trace)

    async def hand_over(self, prompt: Sequence[int], output_tokens: int) -> Handover:
        """One request over both sides."""
        said = await self._prefilled(prompt)
        prefilled_s = self._clock()
        times = await self._decode.stream(prompt, output_tokens, {"kv_transfer_params": said})
        self._handed_tokens += len(prompt)
        return Handover(prefilled_s, times.arrivals)

    async def bytes_per_token(self) -> float | None:
        """Of what has travelled, as NIXL counts it at the decode side; None where that is not said.

        Raises TargetError where the decode side counts tokens by their source, and none came from elsewhere.
        """
        now = await self._counters()
        moved = {name: value - self._metrics.get(name, 0.0) for name, value in now.items()}
        if self._handed_tokens and moved.get("external", 1.0) <= 0:
            raise TargetError(
                f"{self._decode_plan.url}: computed the prompts by itself, "
                f"no KV came from {self._prefill_url}"
            )
        tokens = moved.get("external") or self._handed_tokens
        return moved["bytes"] / tokens if moved.get("bytes") and tokens else None

    async def _prefilled(self, prompt: Sequence[int]) -> Mapping[str, Any]:
        """Where the KV of `prompt` is."""
        if self._session is None:
            raise TargetError(f"{self._prefill_url}: not connected")
        body = {
            "model": self._decode_plan.model,
            "prompt": list(prompt),
            "max_tokens": 1,
            "temperature": 0,
            "kv_transfer_params": dict(KEEP_KV),
        }
        address = f"{self._prefill_url}/v1/completions"
        try:
            async with self._session.post(address, json=body) as response:
                text = await response.text()
                document = json.loads(text)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise TargetError(f"{address}: {' '.join(str(error).split()) or type(error).__name__}") from error
        if not response.ok or not isinstance(document, dict):
            raise TargetError(f"{address}: {response.status}: {error_text(document)}")
        said = document.get("kv_transfer_params")
        if not isinstance(said, dict):
            raise TargetError(f"{address}: the answer has no kv_transfer_params, so its KV cannot be fetched")
        return said

    async def _counters(self) -> dict[str, float]:
        """Tokens and bytes that came from elsewhere so far, as far as the decode side says."""
        if self._session is None:
            return {}
        try:
            async with self._session.get(f"{base_url(self._decode_plan.url)}/metrics") as response:
                text = await response.text() if response.ok else ""
        except (aiohttp.ClientError, OSError, TimeoutError):
            text = ""
        found = {"external": EXTERNAL.findall(text), "bytes": BYTES.findall(text)}
        return {name: sum(map(float, values)) for name, values in found.items() if values}
