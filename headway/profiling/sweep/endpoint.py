"""A running OpenAI endpoint as a target: `/v1/completions`, streamed, prompts as token ids.

Asked for with vLLM's extensions where the server takes them: `ignore_eos`, so that outputs are as long as
asked for, and usage with each chunk, so that tokens without text count. Times and token counts are those of
`headway.loadgen`: from the server's `usage` where it says, else the chunks. What vLLM says of itself is read
where it is there: `/metrics` has the KV capacity (`vllm:cache_config_info`), `/v1/models` the longest request
(`max_model_len`).
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp

from headway.loadgen.client import Clock, make_session, perform
from headway.loadgen.plan import LoadPlan, PlannedRequest, authorisation, base_url
from headway.loadgen.records import Ending, RequestOutcome, RequestRecord, StreamTimer
from headway.profiling import TargetError, UnmeasurableError
from headway.profiling.sweep.measure import Arrival, StreamTimes

ASK_TIMEOUT_S = 10.0
GREETING = tuple(range(100, 116))
"""A short prompt, as token ids."""
TOO_LARGE = (400, 413, 422)
"""Statuses with which servers refuse a request that can never fit."""
REFUSED = 400
"""The least status that is no answer."""
NO_FIELDS: Mapping[str, Any] = {}
CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
LABEL = re.compile(r'(\w+)="(\d+)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointFacts:
    """Figures that a server reports; None where it does not."""

    kv_tokens: int | None = None
    request_tokens: int | None = None
    batch: int | None = None


class OpenAiTarget:
    """The target at `plan.url`; enter it before use. The model is `plan.model`."""

    def __init__(self, plan: LoadPlan, clock: Clock) -> None:
        self.plan, self.clock = plan, clock
        self._session: aiohttp.ClientSession | None = None
        self._extended = True

    async def __aenter__(self) -> Self:
        """Open connections, and see that the server answers, and whether it knows vLLM's extensions.

        Raises TargetError, or UnmeasurableError for a server that refuses even a short request.
        """
        self._session = make_session(self.plan)
        try:
            await self._greet()
        except BaseException:
            await self._session.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close connections, and with them what still runs."""
        if self._session is not None:
            await self._session.close()

    async def stream(
        self, prompt: Sequence[int], output_tokens: int, fields: Mapping[str, Any] = NO_FIELDS
    ) -> StreamTimes:
        """Serve one request to its end; `fields` go into its body."""
        if self._session is None:
            raise TargetError(f"{self.plan.url}: not connected")
        planned = PlannedRequest(
            index=0,
            at_s=self.clock(),
            input_tokens=len(prompt),
            output_tokens=output_tokens,
            body=self._body(prompt, output_tokens, fields),
        )
        timer = StreamTimer(
            index=0, intended_s=planned.at_s, input_tokens=len(prompt), requested_tokens=output_tokens
        )
        ending = await perform(self._session, self.plan, planned, timer, self.clock)
        self._require_ok(ending, len(prompt), output_tokens)
        return _times(timer.end(self.clock(), ending))

    async def request(self, method: str, address: str, body: Any = None) -> tuple[int, str]:  # noqa: ANN401 - JSON
        """Status and text of another call, on the same connections. Raises TargetError."""
        if self._session is None:
            raise TargetError(f"{address}: not connected")
        timeout = aiohttp.ClientTimeout(total=self.plan.timeout_s)
        try:
            async with self._session.request(method, address, json=body, timeout=timeout) as response:
                return response.status, await response.text()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise TargetError(f"{address}: {' '.join(str(error).split()) or type(error).__name__}") from error

    async def _greet(self) -> None:
        try:
            await self.stream(GREETING, 1)
        # Servers that do not know vLLM's fields refuse the whole request; ask again without them.
        except UnmeasurableError:
            self._extended = False
            await self.stream(GREETING, 1)

    def _body(self, prompt: Sequence[int], output_tokens: int, fields: Mapping[str, Any]) -> bytes:
        document: dict[str, Any] = {
            "model": self.plan.model,
            "prompt": list(prompt),
            "max_tokens": output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **fields,
        }
        if self._extended:
            document["ignore_eos"] = True
            document["stream_options"]["continuous_usage_stats"] = True
        return json.dumps(document, separators=(",", ":")).encode()

    def _require_ok(self, ending: Ending, input_tokens: int, output_tokens: int) -> None:
        if ending.outcome is RequestOutcome.OK:
            return
        what = f"{input_tokens} input and {output_tokens} output tokens"
        if ending.outcome is RequestOutcome.HTTP and ending.status in TOO_LARGE:
            raise UnmeasurableError(f"the server refuses {what} ({ending.detail})")
        if ending.outcome is RequestOutcome.SHED:
            raise UnmeasurableError(f"the server sheds requests ({ending.detail})")
        raise TargetError(f"{self.plan.url}: {what}: {ending.outcome}: {ending.detail}".rstrip(": "))


def _times(record: RequestRecord) -> StreamTimes:
    """Arrivals from the gaps of a record, which are per token."""
    sent_s, at_s = record.sent_s, record.first_token_s
    if sent_s is None or at_s is None:
        raise TargetError("the server sent no token")
    arrivals = [Arrival(at_s, 1.0)]
    for gap_s, tokens in record.gaps:
        at_s += gap_s * tokens
        arrivals.append(Arrival(at_s, tokens))
    return StreamTimes(sent_s=sent_s, arrivals=tuple(arrivals))


async def endpoint_facts(url: str, api_key: str | None = None) -> EndpointFacts:
    """The KV capacity and the longest request that the server reports, if it reports them."""
    timeout = aiohttp.ClientTimeout(total=ASK_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout, headers=authorisation(api_key)) as session:
        metrics = await _text(session, f"{base_url(url)}/metrics")
        models = await _text(session, f"{base_url(url)}/v1/models")
    return EndpointFacts(kv_tokens=kv_capacity(metrics), request_tokens=longest_request(models))


def kv_capacity(metrics: str) -> int | None:
    """Tokens in the KV cache, from vLLM's metrics in Prometheus' text format."""
    found = CACHE_CONFIG.search(metrics)
    labels = {name: int(value) for name, value in LABEL.findall(found.group(1))} if found else {}
    tokens = labels.get("block_size", 0) * labels.get("num_gpu_blocks", 0)
    return tokens or None


def longest_request(models: str) -> int | None:
    """`max_model_len` of the first model in an answer of `/v1/models`."""
    try:
        length = json.loads(models)["data"][0].get("max_model_len")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None
    return length if isinstance(length, int) and length > 0 else None


async def _text(session: aiohttp.ClientSession, address: str) -> str:
    try:
        async with session.get(address) as response:
            return await response.text() if response.ok else ""
    except (aiohttp.ClientError, OSError, TimeoutError):
        return ""
