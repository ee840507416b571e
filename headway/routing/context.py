"""One decision's question: which of these replicas, for this request, in this role.


The chosen candidate of one question, its figures as plain numbers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, nan

import numpy as np
from numpy.typing import NDArray

from headway.config.roles import Role
from headway.engine.rules import EngineRules
from headway.routing.affinity import PrefixIndex, Sessions
from headway.routing.capacity import CapacityTable, Pattern, pattern_of
from headway.routing.corrections import Handovers
from headway.routing.fleet import Fleet
from headway.routing.forecast import Row
from headway.routing.latency import Latency
from headway.routing.records import Features, Record, Replica, Tracked
from headway.routing.table import (
    CAPACITY_TOKENS,
    COMING,
    KV_TOKENS,
    OTHER_REQUESTS,
    OTHER_TOKENS,
    OUTPUT_TOKENS,
    PREFILL_TOKENS,
    RUNNING,
    WAITING,
    Column,
    FloatArray,
    SlotArray,
)
from headway.routing.types import RequestSlo, ShedReason


@dataclass(slots=True, kw_only=True)
class Knowledge:
    """What plugins may look at. `roles` are those that a request passes; `slo` is the deployment's now."""

    roles: tuple[Role, ...]
    fleet: Fleet
    rules: EngineRules
    prefixes: PrefixIndex
    sessions: Sessions
    latency: Latency
    handovers: Handovers
    capacity: CapacityTable
    slo: RequestSlo
    generator: np.random.Generator


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """No candidate is left: why, and `explain()` in words.

    `hopeful_until_s` is until when waiting may help, −inf if it never does. `unjudged`: nothing is wrong with
    the request, but there is no prediction to judge by.
    """

    reason: ShedReason
    explain: Callable[[], str]
    hopeful_until_s: float = inf
    retry_after_s: float = 1.0
    unjudged: bool = False


class Question:
    """The candidates of one role for one request. Lives as long as the decision.

    `slots` are the candidates' columns of the fleet's table. `further_s` is what comes on top of this role's
    part of TTFT. Arrays that plugins share are computed once: `cached_tokens`, `prior`, `forecast`, and
    `notes`, which plugins keep by name from one step to the next; all of them shrink with the candidates.
    """

    __slots__ = (
        "_cached",
        "_forecast",
        "_prior",
        "further_s",
        "know",
        "notes",
        "now_s",
        "record",
        "role",
        "slots",
    )

    def __init__(self, know: Knowledge, now_s: float, record: Record, role: Role) -> None:
        self.know, self.now_s, self.record, self.role = know, now_s, record, role
        self.slots: SlotArray = know.fleet.ready(role)
        self.further_s = 0.0
        self.notes: dict[str, FloatArray] = {}
        self._cached: FloatArray | None = None
        self._prior: FloatArray | None = None
        self._forecast: FloatArray | None = None

    @property
    def waited_s(self) -> float:
        """Seconds since the request arrived."""
        return self.now_s - self.record.request.arrival_s

    @property
    def pattern(self) -> Pattern:
        """The request's pattern (document 003)."""
        return pattern_of(self.record.request, self.record.expected_output, self.know.capacity.buckets)

    @property
    def cached_tokens(self) -> FloatArray:
        """Leading prompt tokens that each candidate is thought to hold, f8[C]; at least one is computed.

        Decode replicas compute no prompt and hold none.
        """
        if self._cached is None:
            self._cached = self._cached_now()
        return self._cached

    @property
    def forecasted(self) -> bool:
        """Whether the forecast has been asked for."""
        return self._forecast is not None

    @property
    def alone_s(self) -> tuple[float, float]:
        """TTFT and TPOT if all replicas were idle; for a held request, what it was when first asked."""
        record = self.record
        if record.alone_s is None:
            record.alone_s = self._alone_s()
        return record.alone_s

    @property
    def hopeful_until_s(self) -> float:
        """The time until which waiting may help: an idle replica could keep the SLO; −inf if none can now."""
        record, (ttft_s, tpot_s) = self.record, self.alone_s
        start_by_s = record.request.arrival_s + record.slo.ttft_s - ttft_s
        return start_by_s if tpot_s <= record.slo.tpot_s and self.now_s <= start_by_s else -inf

    @property
    def joined_s(self) -> float:
        """The least TTFT where no prompt queues but all run that run now; infinite without a prediction.

        A request that gets a place that became free shares its iterations with the batch, after the one under
        way.
        """
        ttft_s = 0.0
        for role in self.know.roles:
            rows = self.about(role).prior
            known = rows[:, np.isfinite(rows[Row.TTFT_S])]
            part_s = known[Row.TTFT_S] - known[Row.QUEUE_S] + known[Row.ITERATION_S]
            ttft_s += float(part_s.min(initial=inf))
        if len(self.know.roles) > 1:
            ttft_s += self.know.rules.transfer_s(self.record.request.input_tokens)
        return ttft_s

    @property
    def prior(self) -> FloatArray:
        """This role's part of TTFT, TPOT and their parts by the profile, f8[len(Row), C]."""
        if self._prior is None:
            self._prior = self.know.latency.rows(self, self.know.fleet.table)
        return self._prior

    @property
    def forecast(self) -> FloatArray:
        """The same with `further_s` in TTFT, and corrected by what was learned."""
        if self._forecast is None:
            self._forecast = self.know.latency.corrected(self, self.prior)
        return self._forecast

    def column(self, row: Column) -> FloatArray:
        """One quantity of all candidates, a copy."""
        values: FloatArray = self.know.fleet.table[row].take(self.slots)
        return values

    def features(self) -> FloatArray:
        """The latency model's columns (`predictors.latency.FIELDS`), f8[C, 8]."""
        tokens, column = float(self.record.request.input_tokens), self.column
        with np.errstate(invalid="ignore"):
            usage = (column(Column.KV_TOKENS) + column(Column.OTHER_TOKENS)) / column(Column.CAPACITY_TOKENS)
        features = np.empty((len(self.slots), 8))
        features[:, 0] = np.minimum(usage, 1.0)
        features[:, 1] = tokens
        features[:, 2] = column(Column.COMING if self.role is Role.DECODE else Column.WAITING)
        features[:, 3] = column(Column.RUNNING) + column(Column.OTHER_REQUESTS)
        features[:, 4] = 0.0
        features[:, 5] = self.cached_tokens / tokens
        features[:, 6] = column(Column.PREFILL_TOKENS)
        features[:, 7] = column(Column.OUTPUT_TOKENS)
        return features

    def about(self, role: Role, slots: SlotArray | None = None) -> "Question":
        """A question about the same request in `role`, about all candidates or those in `slots`."""
        other = Question(self.know, self.now_s, self.record, role)
        if slots is not None:
            other.slots = slots
        if role is self.role:
            other.further_s = self.further_s
        return other

    def narrowed(self, position: int) -> "Question":
        """The question about one of the candidates, before a forecast was asked for."""
        places = slice(position, position + 1)
        other = self.about(self.role, self.slots[places])
        other._cached = None if self._cached is None else self._cached[places]
        return other

    def _alone_s(self) -> tuple[float, float]:
        """The best TTFT and TPOT with all replicas idle; infinite where no ready replica has a profile."""
        know, ttft_s, tpot_s = self.know, 0.0, 0.0
        if len(know.roles) > 1:
            ttft_s += know.rules.transfer_s(self.record.request.input_tokens)
        for role in know.roles:
            part_s, tpot_s = know.latency.alone_s(self.about(role), know.fleet.ready_kinds(role))
            ttft_s += part_s
        return ttft_s, tpot_s

    def _cached_now(self) -> FloatArray:
        request, prefixes = self.record.request, self.know.prefixes
        if self.role is Role.DECODE:
            return np.zeros(len(self.slots))
        if len(self.slots) == 1:
            run = prefixes.run_at(int(self.slots[0]), request.blocks)
            return np.array([float(min(run * request.block_tokens, request.input_tokens - 1))])
        most = request.input_tokens - 1
        tokens = prefixes.runs(request.blocks, self.know.fleet.slots, request.block_tokens, most)
        return np.zeros(len(self.slots)) if tokens is None else tokens.take(self.slots)

    def restrict(self, keep: NDArray[np.bool_]) -> None:
        """Go on with those that `keep` marks."""
        kept = keep.nonzero()[0]
        self.slots = self.slots.take(kept)
        if self._cached is not None:
            self._cached = self._cached.take(kept)
        if self._prior is not None:
            same = self._forecast is self._prior
            self._prior = self._prior.take(kept, axis=1)
            self._forecast = self._prior if same else self._forecast
        if self._forecast is not None and self._forecast is not self._prior:
            self._forecast = self._forecast.take(kept, axis=1)
        self.notes = {name: values.take(kept) for name, values in self.notes.items()}

    def loads(self) -> Mapping[int, float | None]:
        """The request's load by profile kind, for all kinds that the role ever had (see `capacity`)."""
        record, know, role, pattern = self.record, self.know, self.role, self.pattern
        slo = record.slo if record.slo.given else know.slo
        kinds = know.fleet.kinds(role)
        return {kind: know.capacity.load(pattern, gpu_type, role, slo) for kind, gpu_type in kinds.items()}


TTFT_S, TPOT_S = int(Row.TTFT_S), int(Row.TPOT_S)
OWN_WORK_S, ITERATION_S, QUEUE_S = int(Row.WORK_S), int(Row.ITERATION_S), int(Row.QUEUE_S)


@dataclass(slots=True, kw_only=True)
class Seat:
    """One replica for one role of one request. `ttft_s` and `tpot_s` are predicted, NaN without a profile."""

    replica: Replica
    cached_tokens: float
    ttft_s: float
    tpot_s: float
    work_s: float
    iteration_s: float
    queue_s: float
    prior_ttft_s: float
    prior_tpot_s: float
    question: Question

    @property
    def missing_tokens(self) -> float:
        """Prompt tokens that the replica has not cached."""
        return self.question.record.request.input_tokens - self.cached_tokens

    def busy_s(self) -> float:
        """How long the prompt keeps the replica busy, which packs prompts into iterations."""
        chunk = self.question.know.rules.chunk_tokens
        return self.work_s + self.iteration_s * (self.missing_tokens / chunk if chunk else 1.0)

    def tracked(self) -> tuple[Tracked, ...]:
        """What there is to learn from; nothing without a prediction."""
        if not self.ttft_s < inf:
            return ()
        role = self.question.role
        row = Tracked(
            features=self._features(),
            prior_ttft_s=nan if role is Role.DECODE else self.prior_ttft_s,
            prior_tpot_s=nan if role is Role.PREFILL else self.prior_tpot_s,
            ttft_s=nan if role is Role.PREFILL else self.ttft_s,
            tpot_s=nan if role is Role.PREFILL else self.tpot_s,
        )
        return (row,)

    def _features(self) -> Features:
        """The same as `Question.features` has for this candidate."""
        question, tokens = self.question, float(self.question.record.request.input_tokens)
        cell = question.know.fleet.table[:, self.replica.slot].tolist()
        return (
            min((cell[KV_TOKENS] + cell[OTHER_TOKENS]) / cell[CAPACITY_TOKENS], 1.0),
            tokens,
            cell[COMING] if question.role is Role.DECODE else cell[WAITING],
            cell[RUNNING] + cell[OTHER_REQUESTS],
            0.0,
            self.cached_tokens / tokens,
            cell[PREFILL_TOKENS],
            cell[OUTPUT_TOKENS],
        )


def take_seat(question: Question, position: int) -> Seat:
    """The candidate at `position`. Where no forecast was asked for yet, only its own is computed."""
    replica = question.know.fleet.at(int(question.slots[position]))
    if not question.forecasted:
        question, position = question.narrowed(position), 0
    rows = question.forecast[:, position].tolist()
    prior = rows if question.forecast is question.prior else question.prior[:, position].tolist()
    known = rows[OWN_WORK_S] < inf
    return Seat(
        replica=replica,
        cached_tokens=float(question.cached_tokens[position]),
        ttft_s=rows[TTFT_S],
        tpot_s=rows[TPOT_S],
        work_s=rows[OWN_WORK_S] if known else 0.0,
        iteration_s=rows[ITERATION_S] if known else 0.0,
        queue_s=rows[QUEUE_S],
        prior_ttft_s=prior[TTFT_S] if prior is rows else prior[TTFT_S] + question.further_s,
        prior_tpot_s=prior[TPOT_S],
        question=question,
    )
