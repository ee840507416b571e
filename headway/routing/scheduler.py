"""From a request to its replicas: the profile's pipeline for each role, predictions, and offload.

    mixed pool            one decision
    disaggregated pools   one for the prefill pool, one for the decode pool; where predictions count, the
                          prefill candidates' TTFT holds the transfer and the least that decode adds, and the
                          decode candidates' TTFT what the chosen prefill replica takes

A profile that judges by predictions and finds none hands the request to the fallback profile. Nothing is
written here: the router enters the choice in its books.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, nan

import numpy as np

from headway.routing.columns import Column
from headway.routing.fleet import FloatArray
from headway.routing.forecast import Row
from headway.routing.learning import Tracked
from headway.routing.offload import OffloadDecision
from headway.routing.offloading import Offloading
from headway.routing.pipeline import Pipeline
from headway.routing.question import Knowledge, Question, Refusal
from headway.routing.record import Record
from headway.routing.replica import Replica
from headway.routing.seat import Seat, take_seat


@dataclass(slots=True, kw_only=True)
class Choice:
    """Where a request goes, and what that means there.

    `ttft_s` and `tpot_s` are predicted from now on, NaN where nothing is. `busy_s` of the prefill replica's
    time goes to the prompt, `work_s` of it beside its batch.
    """

    pipeline: Pipeline
    prefill: Replica
    decode: Replica
    cached_tokens: int
    busy_s: float
    work_s: float
    ttft_s: float = nan
    tpot_s: float = nan
    prefill_load: float = 0.0
    load: float = 0.0
    tracked: tuple[Tracked, ...] = ()
    offload: OffloadDecision | None = None


class Scheduler:
    """Chooses by the profiles. Reads the fleet, writes nothing."""

    def __init__(
        self, know: Knowledge, pipelines: Mapping[str, Pipeline], fallback: str, offloading: Offloading
    ) -> None:
        self._know, self._pipelines, self._offloading = know, pipelines, offloading
        self._fallback = pipelines[fallback]

    def arrived(self, now_s: float) -> None:
        """A request came."""
        self._offloading.arrived(now_s)

    def choose(self, now_s: float, record: Record) -> Choice | Refusal:
        """Where the request goes now. Needs a ready replica of each role."""
        choice = self._choose(now_s, record, self._pipelines[record.profile])
        if isinstance(choice, Refusal) and choice.unjudged:
            return self._choose(now_s, record, self._fallback)
        return choice

    def chosen(
        self,
        now_s: float,
        record: Record,
        prefill: Replica,
        decode: Replica,
        decision: OffloadDecision | None = None,
    ) -> Choice:
        """The choice of given replicas, with predictions if the record's profile makes them."""
        first, second = (
            take_seat(
                Question(self._know, now_s, record, replica.role).about(
                    replica.role, np.array([replica.slot])
                ),
                0,
            )
            for replica in (prefill, decode)
        )
        return self._choice(
            self._pipelines[record.profile], first, first if prefill is decode else second, decision
        )

    def guards(self, now_s: float, record: Record, choice: Choice) -> tuple[float, float]:
        """The slack of its TTFT, and the TPOT SLO that newcomers have to keep.

        A promise that cannot be kept (TTFT) or that no replica could keep (TPOT) binds nobody: infinite.
        """
        slo, slack_s, guard_s = record.slo, inf, record.slo.tpot_s
        if choice.ttft_s < inf:
            slack_s = slo.ttft_s - (now_s - record.request.arrival_s) - choice.ttft_s
        if choice.tpot_s > guard_s:
            question = Question(self._know, now_s, record, self._know.roles[-1])
            if question.alone_s[1] > guard_s:
                guard_s = inf
        return (slack_s if slack_s >= 0.0 else inf), guard_s

    def _choose(self, now_s: float, record: Record, pipeline: Pipeline) -> Choice | Refusal:
        question = Question(self._know, now_s, record, self._know.roles[0])
        if len(self._know.roles) > 1:
            return self._split(pipeline, question, question.about(self._know.roles[1]))
        position = pipeline.decide(question, self._know.generator)
        if isinstance(position, Refusal):
            return position
        seat = take_seat(question, position)
        decision, other = self._offloading.considered(seat)
        if other is None:
            return self._choice(pipeline, seat, seat, decision)
        return self._choice(pipeline, other, seat, decision)

    def _split(self, pipeline: Pipeline, first: Question, second: Question) -> Choice | Refusal:
        decode_s = 0.0
        if pipeline.records_outcomes:
            decode_s = _least(second.prior[Row.TTFT_S])
            first.further_s = self._know.rules.transfer_s(first.record.request.input_tokens) + decode_s
        position = pipeline.decide(first, self._know.generator)
        if isinstance(position, Refusal):
            return position
        prefill = take_seat(first, position)
        if pipeline.records_outcomes:
            second.further_s = prefill.ttft_s - decode_s
        position = pipeline.decide(second, self._know.generator)
        if isinstance(position, Refusal):
            return position
        return self._choice(pipeline, prefill, take_seat(second, position))

    def _choice(
        self, pipeline: Pipeline, prefill: Seat, decode: Seat, decision: OffloadDecision | None = None
    ) -> Choice:
        same, tracked = prefill is decode, tuple[Tracked, ...]()
        split_mixed = not same and prefill.replica.role is decode.replica.role
        if pipeline.records_outcomes and not split_mixed:
            tracked = prefill.tracked() if same else prefill.tracked() + decode.tracked()
        load, ttft_s = self._load(pipeline, decode), decode.ttft_s
        if split_mixed:
            transfer_s = self._know.handovers.seconds(int(decode.missing_tokens))
            ttft_s = prefill.ttft_s + transfer_s + decode.iteration_s
        return Choice(
            pipeline=pipeline,
            prefill=prefill.replica,
            decode=decode.replica,
            cached_tokens=int(prefill.cached_tokens),
            busy_s=prefill.busy_s(),
            work_s=prefill.work_s,
            ttft_s=ttft_s if pipeline.records_outcomes else nan,
            tpot_s=decode.tpot_s if pipeline.records_outcomes else nan,
            prefill_load=load if same else self._load(pipeline, prefill),
            load=load,
            tracked=tracked,
            offload=decision,
        )

    def _load(self, pipeline: Pipeline, seat: Seat) -> float:
        if not pipeline.packs_by_capacity:
            return 0.0
        load = seat.question.loads()[int(self._know.fleet.table[Column.KIND, seat.replica.slot])]
        return 1.0 / self._know.rules.max_batch_size if load is None else min(load, 1.0)


def _least(values: FloatArray) -> float:
    """The least that is not NaN; 0 if all are, so that the other role's figures stand alone."""
    least = values.min()
    if least == least:  # noqa: PLR0124 - NaN if any is
        return float(least)
    known = values[np.isfinite(values)]
    return float(known.min()) if len(known) else 0.0
