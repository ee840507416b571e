"""The chosen candidate of one question, its figures as plain numbers."""

from dataclasses import dataclass
from math import inf, nan

from headway.config.roles import Role
from headway.routing.columns import Column
from headway.routing.forecast import Row
from headway.routing.learning import Features, Tracked
from headway.routing.question import Question
from headway.routing.replica import Replica

RUNNING, COMING, WAITING = int(Column.RUNNING), int(Column.COMING), int(Column.WAITING)
OTHER_REQUESTS, OTHER_TOKENS = int(Column.OTHER_REQUESTS), int(Column.OTHER_TOKENS)
KV_TOKENS, CAPACITY_TOKENS = int(Column.KV_TOKENS), int(Column.CAPACITY_TOKENS)
PREFILL_TOKENS, OUTPUT_TOKENS = int(Column.PREFILL_TOKENS), int(Column.OUTPUT_TOKENS)
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
