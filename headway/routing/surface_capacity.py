"""Capacity from a profile's surfaces: prefill TTFT and decode ITL (document 003's RPS × E2E).

Mixed replica: requests in it at the largest rate that keeps both targets (`mixed_replica`).

Decode replica: the largest n with ITL(n) within the TPOT target, at context I + O / 2.

Prefill replica, one prompt after the other: as many as leave in time when they come all at once,
k TTFT(I) + transfer + first iteration <= TTFT target. That is Little's law for a full server, the rate
1 / TTFT(I) times the time to stay; and of several patterns, loads that sum to 1 are work that just ends in
time.

What a replica holds bounds every capacity, and is the capacity where nothing is promised: tokens in the KV
cache, requests in a batch, and a batch no larger than was profiled. A request that keeps its SLO on an idle
replica has a capacity of 1 at least; one that does not, or whose tokens exceed the KV cache, has 0.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, floor, inf
from typing import Protocol

import numpy as np

from headway.config.roles import Role
from headway.routing.capacity import CapacitySource, CapacityTable
from headway.routing.mixed_replica import PromptCost, Question, batch_itl_s, largest_point
from headway.routing.patterns import DEFAULT_BUCKETS, Buckets
from headway.routing.types import RequestSlo
from interp import Profile


class BatchRules(Protocol):
    """What capacity depends on of how an engine batches; `chunk_tokens` 0: whole prompts."""

    @property
    def max_batch_size(self) -> int:
        """Requests that decode together at most."""

    @property
    def chunk_tokens(self) -> int:
        """Prompt tokens that one iteration carries at most."""

    def transfer_s(self, tokens: int) -> float:
        """Seconds that the KV of so many tokens travels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceCapacity:
    """Capacities of one GPU type from its profile."""

    profile: Profile
    rules: BatchRules

    def capacity(self, input_tokens: float, output_tokens: float, role: Role, slo: RequestSlo) -> float:
        """Concurrent requests of these lengths (below 1 token counts as 1) that a replica bears."""
        question = Question(
            input_tokens=max(1.0, input_tokens),
            output_tokens=max(1.0, output_tokens),
            slo=slo,
            holds=self._holds(max(1.0, input_tokens), max(1.0, output_tokens), role),
        )
        if question.holds < 1 or not slo.given:
            return float(question.holds)
        by_role: Mapping[Role, Callable[[Question], float]] = {
            Role.MIXED: self._mixed,
            Role.DECODE: self._decode,
            Role.PREFILL: self._prefill,
        }
        return min(by_role[role](question), float(question.holds))

    def _holds(self, input_tokens: float, output_tokens: float, role: Role) -> int:
        decode = self.profile.decode
        max_kv_tokens = float(decode.table.max_kv_tokens)
        if role is Role.PREFILL:
            return floor(max_kv_tokens / input_tokens)
        context = input_tokens + output_tokens / 2
        profiled = max(1.0, decode.domain_end_kv(context) * max_kv_tokens / context)
        return floor(min(max_kv_tokens / (input_tokens + output_tokens), profiled, self.rules.max_batch_size))

    def _prefill(self, question: Question) -> float:
        if question.slo.ttft_s == inf:
            return float(question.holds)
        transfer_s = self.rules.transfer_s(ceil(question.input_tokens))
        left_s = question.slo.ttft_s - transfer_s - self._alone_itl_s(question)
        prompts = left_s / self.profile.prefill.ttft_s(question.input_tokens)
        return prompts if prompts >= 1.0 else 0.0

    def _decode(self, question: Question) -> float:
        batches = np.arange(1.0, question.holds + 1.0)
        kept = np.flatnonzero(batch_itl_s(self.profile.decode, question, batches) <= question.slo.tpot_s)
        return float(batches[kept[-1]]) if len(kept) else 0.0

    def _mixed(self, question: Question) -> float:
        prompt = PromptCost.of(self.profile.prefill, question.input_tokens, self.rules.chunk_tokens)
        tpot_s = self._alone_itl_s(question) if question.output_tokens > 1.0 else 0.0
        if prompt.alone_s > question.slo.ttft_s or tpot_s > question.slo.tpot_s:
            return 0.0
        point = largest_point(self.profile.decode, prompt, question)
        return 1.0 if point is None else max(1.0, point.requests)

    def _alone_itl_s(self, question: Question) -> float:
        return float(batch_itl_s(self.profile.decode, question, np.ones(1))[0])


def capacity_table(
    profiles: Mapping[str, Profile | CapacitySource], rules: BatchRules, buckets: Buckets = DEFAULT_BUCKETS
) -> CapacityTable:
    """Capacities by GPU type, each from its profile's surfaces, or from what is a source itself."""
    sources = {
        gpu_type: SurfaceCapacity(profile=profile, rules=rules) if isinstance(profile, Profile) else profile
        for gpu_type, profile in profiles.items()
    }
    return CapacityTable(sources, buckets)
