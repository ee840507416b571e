"""From a request to its replicas: the profile's pipeline for each role, predictions, and offload.

    mixed pool            one decision
    disaggregated pools   one for the prefill pool, one for the decode pool; where predictions count, the
                          prefill candidates' TTFT holds the transfer and the least that decode adds, and the
                          decode candidates' TTFT what the chosen prefill replica takes

A profile that goes by predictions and finds none hands the request to the fallback profile. Nothing is
written here: `placing` enters the choice in the fleet's table.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, isnan, nan

import numpy as np

from headway.routing.decide.candidates import SaturationFilter, few_of, sample_of
from headway.routing.decide.context import (
    ChosenReplica,
    Refusal,
    RoutingState,
    SchedulingContext,
    choose_replica,
)
from headway.routing.decide.judge import look_through
from headway.routing.decide.offload import Offloading
from headway.routing.decide.overruling import may_overrule
from headway.routing.decide.plugins import Filter, Packer, Picker, Scorer
from headway.routing.fleet.records import Record, Replica, Sample
from headway.routing.fleet.table import FloatArray, SlotArray
from headway.routing.offload import OffloadDecision
from headway.routing.predict.forecast import ForecastRow
from headway.routing.queue.heads import ANY_ROLE, HeadRow, LineSearch, first_of
from headway.routing.types import PluginFault, ShedReason

logger = logging.getLogger(__name__)

KEPT_FOR_OTHERS = Refusal(
    reason=ShedReason.NO_HEADROOM, explain=lambda: "the replicas with room are kept for other tenants"
)

NOT_THESE = Refusal(reason=ShedReason.NO_HEADROOM, explain=lambda: "others are to be asked")

Among = Sequence[SlotArray | None]
"""Candidates of each role, None for all."""


FreedSlots = tuple[SlotArray, ...]
"""Slots of each role that may have room, i8[n]; or EVERYWHERE: any replica may."""

EVERYWHERE: FreedSlots = ()

LATE = 0.5
"""The share of a TTFT SLO by which a first token is predicted too late from which the SLO is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A scheduling profile, ready to decide: filter → score → pick (see `plugins`).

    A plugin with several faces (the slo-scorer filters and scores) is used in each. Without a scorer of
    positive weight all scores are 1. Those with a default are true (or given) if one of the plugins
    declares it.
    """

    name: str
    filters: tuple[Filter, ...]
    scorers: tuple[tuple[Scorer, float], ...]
    picker: Picker
    uses_predictions: bool = False
    records_outcomes: bool = False
    packer: Packer | None = None
    judges_held: bool = False

    def decide(self, context: SchedulingContext, generator: np.random.Generator) -> int | Refusal:
        """The position of the chosen one in `context.slots`, which may be fewer then; or a refusal.

        Needs at least one candidate.
        """
        for each in self.filters:
            keep = each.keep(context)
            if keep is None or (kept := np.count_nonzero(keep)) == len(keep):
                continue
            if not kept:
                return NOT_THESE if context.partial else each.refusal(context)
            context.restrict(keep)
        return self.picker.pick(context, self._scores(context), generator)

    def _scores(self, context: SchedulingContext) -> FloatArray:
        scorers = self.scorers
        if not scorers:
            return np.ones(len(context.slots))
        scorer, weight = scorers[0]
        scores = scorer.score(context)
        if len(scorers) == 1:
            return scores
        scores = weight * scores
        for scorer, weight in scorers[1:]:
            scores += weight * scorer.score(context)
        return scores


def make_pipeline(name: str, plugins: Sequence[tuple[object, float]], default_picker: Picker) -> Pipeline:
    """The profile of `plugins` with their weights, in order."""
    return Pipeline(
        name=name,
        filters=tuple(plugin for plugin, _ in plugins if isinstance(plugin, Filter)),
        scorers=tuple(
            (plugin, weight) for plugin, weight in plugins if weight > 0 and isinstance(plugin, Scorer)
        ),
        picker=next((plugin for plugin, _ in plugins if isinstance(plugin, Picker)), default_picker),
        uses_predictions=_declared("uses_predictions", plugins),
        records_outcomes=_declared("records_outcomes", plugins),
        judges_held=_declared("judges_held", plugins),
        packer=next((plugin for plugin, _ in plugins if isinstance(plugin, Packer)), None),
    )


def _declared(trait: str, plugins: Sequence[tuple[object, float]]) -> bool:
    """True if the class of one of `plugins` says so; most classes say nothing, which means False."""
    return any(getattr(plugin, trait, False) for plugin, _ in plugins)


@dataclass(slots=True, kw_only=True)
class RouteChoice:
    """The replicas of a request, and what it is thought to cost them.

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
    tracked: tuple[Sample, ...] = ()
    offload: OffloadDecision | None = None


class Scheduler:
    """Chooses by the profiles. Reads the fleet, writes nothing."""

    def __init__(
        self,
        state: RoutingState,
        pipelines: Mapping[str, Pipeline],
        fallback: str,
        offloading: Offloading,
        *,
        saturation: SaturationFilter,
        rescue: Pipeline | None = None,
    ) -> None:
        self._state, self._pipelines, self._offloading = state, pipelines, offloading
        self._fallback, self._rescue, self._saturation = pipelines[fallback], rescue, saturation
        self._faulty: set[str] = set()

    def arrived(self, now_s: float) -> None:
        """A request came."""
        self._offloading.arrived(now_s)

    def choose(
        self,
        now_s: float,
        record: Record,
        among: Among | None = None,
        barred: SlotArray | None = None,
        *,
        likely: bool = True,
    ) -> RouteChoice | Refusal:
        """Where the request goes now. Needs a ready replica of each role. PluginFault.

        `among` are the replicas of each role that are looked at, at least one, None for all. `barred` are not
        for this request. One that is not `likely` to find room, for which all have to be asked, is not tried
        at few of them before.
        """
        choice = self._choose(now_s, record, self._pipelines[record.profile], among, barred, likely=likely)
        if isinstance(choice, Refusal) and choice.unjudged:
            return self._choose(now_s, record, self._fallback, among, barred)
        return choice

    def open_slots(self, now_s: float, freed: FreedSlots) -> FreedSlots | None:
        """`freed` without saturated replicas; None where none is left, or a role has no replica with room for
        any request."""
        fleet, saturation = self._state.fleet, self._saturation
        freed = tuple(saturation.free(now_s, fleet.table, slots) for slots in freed)
        if freed and not any(map(len, freed)):
            return None
        for place, role in enumerate(self._state.roles):
            known = freed and len(freed[place])
            if not known and not saturation.any_free(now_s, fleet.table, fleet.ready(role)):
                return None
        return freed

    def look_through(
        self, now_s: float, heads: FloatArray, profile: tuple[str, int], freed: FreedSlots, search: LineSearch
    ) -> None:
        """Search among the lines of a profile, given with its number, for the next that the freed slots of
        its role may have room for: any that waits for such a role, where the profile does not judge held
        requests, or predictions that refuse may be overruled."""
        state, (name, number) = self._state, profile
        judged = self._pipelines[name].judges_held and not may_overrule(state, now_s, freed)
        for role, slots in enumerate(freed):
            if not len(slots):
                continue
            if judged:
                look_through(state, now_s, heads, (role, number), slots, search)
                continue
            of_role = (heads[HeadRow.ROLE] == role) | (heads[HeadRow.ROLE] == ANY_ROLE)
            waits = search.open & of_role & (heads[HeadRow.PROFILE] == number)
            search.fits |= waits
            column = first_of(heads, waits, state.shares.table, state.shares.ahead_from, search.column)
            if column >= 0 and waits[column]:
                search.column, search.late_s = column, 0.0

    def rescued(self, now_s: float, record: Record, fault: PluginFault) -> RouteChoice | Refusal:
        """The same after `choose` met a fault, without its plugins; the fault again where nothing rescues."""
        if self._rescue is None:
            raise fault
        if fault.plugin not in self._faulty:
            self._faulty.add(fault.plugin)
            logger.error("%s; least load places instead; its further faults are only counted", fault)
        return self._choose(now_s, record, self._rescue)

    def chosen(
        self,
        now_s: float,
        record: Record,
        prefill: Replica,
        decode: Replica,
        decision: OffloadDecision | None = None,
    ) -> RouteChoice:
        """The choice of given replicas, with predictions if the record's profile makes them."""
        first, second = (
            choose_replica(
                SchedulingContext(self._state, now_s, record, replica.role).about(
                    replica.role, np.array([replica.slot])
                ),
                0,
            )
            for replica in (prefill, decode)
        )
        return self._choice(
            self._pipelines[record.profile], first, first if prefill is decode else second, decision
        )

    def guard_s(self, now_s: float, record: Record, choice: RouteChoice) -> float:
        """The TPOT SLO that newcomers have to keep; infinite where its TTFT SLO is lost, or no replica could
        keep it."""
        slo = record.slo
        if (
            choice.ttft_s < inf
            and now_s - record.request.arrival_s + choice.ttft_s > (1.0 + LATE) * slo.ttft_s
        ):
            return inf
        if choice.tpot_s > slo.tpot_s:
            context = SchedulingContext(self._state, now_s, record, self._state.roles[-1])
            if context.alone_s[1] > slo.tpot_s:
                return inf
        return slo.tpot_s

    def _choose(
        self,
        now_s: float,
        record: Record,
        pipeline: Pipeline,
        among: Among | None = None,
        barred: SlotArray | None = None,
        *,
        likely: bool = True,
    ) -> RouteChoice | Refusal:
        contexts = [SchedulingContext(self._state, now_s, record, role) for role in self._state.roles]
        for place, context in enumerate(contexts):
            if among is not None and (slots := among[place]) is not None:
                context.slots = slots
            if barred is not None:
                free = np.ones(self._state.fleet.table.shape[1], dtype=np.bool_)
                free[barred] = False
                context.slots = context.slots[free.take(context.slots)]
                if not len(context.slots):
                    return KEPT_FOR_OTHERS
        if not pipeline.uses_predictions:
            return self._choose_of(pipeline, contexts)
        # A context that has been decided on is restricted: each further pass has its own.
        whole = [partial(each.about, each.role, each.slots) for each in contexts]
        few = [few_of(context) if place or likely else context for place, context in enumerate(contexts)]
        for each, context in zip(few, contexts, strict=True):
            each.partial = each is not context
        choice = self._choose_of(pipeline, few)
        if isinstance(choice, Refusal) and choice.role == 0 and few[0].partial:
            # Of the next role only the soonest counts yet, and the least loaded are among its few.
            choice = self._choose_of(pipeline, [whole[0](), *few[1:]])
        if isinstance(choice, Refusal) and choice.role > 0 and few[choice.role].partial:
            choice = self._choose_of(pipeline, [anew() for anew in whole])
        if isinstance(choice, Refusal) and choice.of_next:
            return choice._replace(role=choice.role + 1)
        return choice

    def _choose_of(self, pipeline: Pipeline, contexts: Sequence[SchedulingContext]) -> RouteChoice | Refusal:
        """The choice among these candidates of each role."""
        if len(contexts) > 1:
            return self._split(pipeline, *contexts)
        position = self._decide(pipeline, context := contexts[0])
        if isinstance(position, Refusal):
            return position
        chosen = choose_replica(context, position)
        decision, other = self._offloading.considered(chosen)
        return self._choice(pipeline, other or chosen, chosen, decision)

    def _decide(self, pipeline: Pipeline, context: SchedulingContext) -> int | Refusal:
        """The profile's choice among those that are not saturated."""
        refusal = self._saturation.drop(context)
        return pipeline.decide(context, self._state.generator) if refusal is None else refusal

    def _split(
        self, pipeline: Pipeline, first: SchedulingContext, second: SchedulingContext
    ) -> RouteChoice | Refusal:
        decode_s = 0.0
        if pipeline.records_outcomes:
            # Prefill candidates are compared by whole TTFTs, for which decode is not chosen yet: its best.
            asked = second if pipeline.uses_predictions else sample_of(second)
            decode_s, first.next_wait_s = _soonest(asked.prior)
            first.further_s = self._state.rules.transfer_s(first.record.request.input_tokens) + decode_s
        position = self._decide(pipeline, first)
        if isinstance(position, Refusal):
            return position
        prefill = choose_replica(first, position)
        if pipeline.records_outcomes:
            second.further_s = prefill.ttft_s - decode_s
        position = self._decide(pipeline, second)
        if isinstance(position, Refusal):
            return position._replace(role=1)
        return self._choice(pipeline, prefill, choose_replica(second, position))

    def _choice(
        self,
        pipeline: Pipeline,
        prefill: ChosenReplica,
        decode: ChosenReplica,
        decision: OffloadDecision | None = None,
    ) -> RouteChoice:
        same, tracked = prefill is decode, tuple[Sample, ...]()
        split_mixed = not same and prefill.replica.role is decode.replica.role
        if pipeline.records_outcomes and not split_mixed:
            tracked = prefill.tracked() if same else prefill.tracked() + decode.tracked()
        load, ttft_s = self._load(pipeline, decode), decode.ttft_s
        if split_mixed:
            transfer_s = self._state.handovers.seconds(int(decode.missing_tokens))
            ttft_s = prefill.ttft_s + transfer_s + decode.iteration_s
        return RouteChoice(
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

    def _load(self, pipeline: Pipeline, chosen: ChosenReplica) -> float:
        if pipeline.packer is None:
            return 0.0
        loads, slots = pipeline.packer.loads(chosen.context), chosen.context.slots
        place = 0 if len(slots) == 1 else int((slots == chosen.replica.slot).argmax())
        return min(float(loads[place]), 1.0)


def _soonest(rows: FloatArray) -> tuple[float, float]:
    """The least TTFT that is not NaN and its queueing; 0 if all are, so that the other role's figures stand
    alone."""
    ttft_s = rows[ForecastRow.TTFT_S]
    place = ttft_s.argmin()
    if isnan(ttft_s[place]):
        known = np.isfinite(ttft_s)
        if not known.any():
            return 0.0, 0.0
        place = np.where(known, ttft_s, inf).argmin()
    return float(ttft_s[place]), float(rows[ForecastRow.QUEUE_S, place])
