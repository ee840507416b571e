"""`headway`: the smallest fleet that would have kept the promises on the traffic of late, as it is forecast.

Theory. Each interval

    learn     replay its requests through fleets of 1, 2, 3… replicas of each pool: loss curves (`learning`)
    judge     what past forecasts, times a safety factor, would have lost and cost by these (`backtest`)
    choose    the cheapest forecast and factor per pool within one loss budget for all pools (`choice`)
    add       what a queue that is already there needs (`needs`)
    release   slowly (`state`); fit into limits and GPU budget

The forecast is for the time when a replica ordered now will serve; that lead is learnt (`starts`). So nothing
has to be set but the share of requests that may miss their SLO, and no average stands for a distribution.
Peaks shorter than the lead cannot be followed by anyone: then the cheapest options are those that hold them,
and the decision says so.

A plan has two steps: `assess` learns and judges, `decide` chooses within the limits and the budget. So
deployments that share a budget can all be assessed before it is divided among them.

Missing data: requests not measured → targets are held. No single requests (`observation.traffic`) → Poisson
arrivals of mean lengths stand in. No output length known yet → decode holds. In the first LEARNING intervals
targets do not fall below the desired counts. A pool that may have no replica (`min_replicas` 0) goes to none
when no request came for the longest run-up (`learning`), and has one again at the first decision that sees a
request. Where the last one sleeps instead of going, it does so after CONFIRM intervals without one (`state`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, isnan

from headway.planning.deciding import Fit, check_budget, fit, gpus, one_each
from headway.planning.hindsight.backtest import Backtest, backtest
from headway.planning.hindsight.causes import causes
from headway.planning.hindsight.choice import (
    class_budgets,
    class_pasts,
    divide_budget,
    loss_budget,
    moving_share,
)
from headway.planning.hindsight.excess import Excess, excess, with_excess
from headway.planning.hindsight.history import OutcomeHistory
from headway.planning.hindsight.learning import MOST_INTERVALS, ReplaySetup, learn
from headway.planning.hindsight.needs import Assessment, Need, as_typical, held_peaks, needs_of, slow_replicas
from headway.planning.hindsight.reasons import alternatives, explain
from headway.planning.hindsight.settings import HeadwaySettings
from headway.planning.hindsight.starts import lead_intervals, missing_capacity
from headway.planning.hindsight.state import NO_REQUESTS, HindsightState, PoolMemory, ReleaseDelay
from headway.planning.policies import PolicySettings, check, ordered
from headway.planning.replay import ReplayEngine
from headway.planning.sleeping import risen
from headway.planning.types import (
    Alternatives,
    Decision,
    Observation,
    PlanningError,
    PoolLimits,
    PoolState,
    Role,
)
from interp import Profile

STEP = 1.0 / 3.0
"""Share of a pool that is released at a time while its profile is a guess."""
UNSEEN_INTERVALS = 20
"""Intervals for which a guess is not planned by without any sight of the engines; with little traffic none
comes."""


@dataclass(frozen=True, slots=True)
class HeadwayPolicy:
    """Plans by hindsight."""

    settings: PolicySettings
    engine: ReplayEngine

    name = "headway"

    @property
    def own(self) -> HeadwaySettings:
        """The settings of this policy alone."""
        return self.settings.section("headway", HeadwaySettings)

    @property
    def interval_s(self) -> float:
        """Seconds between two decisions."""
        return self.settings.interval_s

    def within(self, limits: Mapping[Role, PoolLimits]) -> "HeadwayPolicy":
        """The same within these limits."""
        return replace(self, settings=replace(self.settings, limits=limits))

    def initial_state(self) -> HindsightState:
        """Nothing learnt."""
        return HindsightState()

    @property
    def past_intervals(self) -> int:
        """The most that it remembers."""
        return MOST_INTERVALS

    def recall(self, past: Iterable[Observation]) -> HindsightState:
        """The state after a past: what would have been lost then, on the engines that are planned by.

        Nothing of it is under way any more, and of how real engines did it says nothing.
        """
        state = HindsightState()
        one = PoolState(desired=1, starting=0, ready=1, draining=0)
        for number, observation in enumerate(past, start=1):
            seen = replace(observation, pools=dict.fromkeys(ordered(self.settings.limits), one))
            state = replace(learn(state, seen, self._setup), recalled=number)
        pools = {role: replace(memory, outcomes=OutcomeHistory()) for role, memory in state.pools.items()}
        return replace(state, pools=pools, recent=NO_REQUESTS)

    def alternatives(self, state: HindsightState) -> Alternatives | None:
        """What a fleet of fixed size and a threshold would have cost on the past that is known."""
        limits = {role: limit for role, limit in self.settings.limits.items() if role in state.pools}
        gpus_each = {role: limit.gpus_per_replica for role, limit in limits.items()}
        leads = {
            role: lead_intervals(state.pools[role].starts.known_s(self.own.lead_s), self.interval_s)
            for role in limits
        }
        return alternatives(state, gpus_each, leads, loss_budget(self.settings))

    def serves_in_s(self, state: HindsightState, now_s: float) -> float:
        """Seconds until each pool has a replica that is under way, or ordered now."""
        starts = (state.pool(role).starts for role in self.settings.limits)
        return max(each.due_s(now_s, self.own.lead_s) for each in starts)

    def starts_s(self, state: HindsightState) -> Mapping[Role, float]:
        """Seconds that a replica of each pool takes to start."""
        return {role: state.pool(role).starts.known_s(self.own.lead_s) for role in self.settings.limits}

    def plan(self, observation: Observation, state: HindsightState) -> Decision:
        """One decision; see the module for missing data. PlanningError if a pool is missing."""
        return self.decide(self.assess(observation, state))

    @property
    def _setup(self) -> ReplaySetup:
        # Also what came at night may be judged by the fleets of the day.
        most = {role: limits.max_replicas for role, limits in self.settings.widest.items()}
        return ReplaySetup(
            engine=self.engine,
            most=most,
            may_miss=loss_budget(self.settings),
            classes=tuple(self.settings.classes),
            interval_s=self.interval_s,
        )

    def assess(self, observation: Observation, state: HindsightState) -> Assessment:
        """Learn from one more interval, and judge the past. PlanningError if a pool is missing."""
        check(observation, self.settings)
        roles = ordered(self.settings.limits)
        may_miss = loss_budget(self.settings)
        pools, slow = (
            {role: observation.pools[role] for role in roles},
            slow_replicas(observation, self.engine),
        )
        stood = None if observation.stood is None else as_typical(observation.stood, slow)
        planned = replace(observation, pools=as_typical(pools, slow), stood=stood)
        state = learn(state, planned, self._setup)
        memories = {role: self._started(state.pool(role), observation, role) for role in roles}
        leads_s = {
            role: memory.starts.lead_s(observation.now_s, self.own.lead_s)
            for role, memory in memories.items()
        }
        unexplained = {
            role: found
            for role, memory in memories.items()
            if (found := excess(memory.outcomes, may_miss, self.own.half_life_s)) is not None
        }
        state = replace(state, pools=memories)
        tested = {
            role: self._tested(state, role, leads_s[role], unexplained.get(role))
            for role, memory in memories.items()
            if observation.requests >= 0 and len(memory.history) >= 1
        }
        return Assessment(
            observation=observation,
            state=state,
            backtests={role: each[0] for role, each in tested.items()},
            classes={role: each[1:] for role, each in tested.items()},
            leads_s=leads_s,
            missing=missing_capacity(
                {role: (memory.starts, memory.history) for role, memory in memories.items()}, observation
            ),
            excess=unexplained,
            slow=slow,
        )

    def _tested(
        self, state: HindsightState, role: Role, lead_s: float, found: Excess | None
    ) -> tuple[Backtest, ...]:
        """The backtest of a pool's past, and of that of each class, with the excess losses `found`."""
        memory, lead = state.pool(role), lead_intervals(lead_s, self.interval_s)
        half_life = self.own.half_life_s / self.interval_s
        pasts = (memory.history, *memory.classes)
        budgets = (loss_budget(self.settings), *class_budgets(self.settings))
        return tuple(
            backtest(with_excess(past, found, may_miss), lead, self.interval_s, half_life, state.predicted)
            for past, may_miss in zip(pasts, budgets, strict=True)
        )

    def wanted(self, assessed: Assessment, needs: Mapping[Role, Need]) -> Mapping[Role, int]:
        """Replicas to hold for these needs within limits and budget."""
        return self._fit(self._release(assessed, needs), needs, assessed).targets

    def decide(self, assessed: Assessment) -> Decision:
        """The decision that follows."""
        observation, memories = assessed.observation, assessed.state.pools
        needs = self._trusted(assessed, needs_of(assessed, self.settings))
        delays = self._release(assessed, needs)
        fitted = self._fit(delays, needs, assessed)
        pools = {
            role: self._ordered(memory, delays[role], fitted.targets[role], observation, role)
            for role, memory in memories.items()
        }
        return Decision(
            targets=fitted.targets,
            next_state=replace(assessed.state, pools=pools),
            reasons=explain(
                observation,
                self.settings,
                needs,
                delays,
                fitted,
                profile=self.engine.profile.meta,
                missing=assessed.missing,
                unexplained=assessed.excess,
                slow=assessed.slow,
                peaks=held_peaks(assessed, needs, self.settings),
                changes=self._changes(assessed, fitted),
            ),
        )

    def _changes(self, assessed: Assessment, fitted: Fit) -> Sequence[str]:
        """What changed, where a pool gets more than it had."""
        state, seen = assessed.state, assessed.observation
        if all(count <= self._delay(assessed, role).target for role, count in fitted.targets.items()):
            return ()
        return [*causes(state.recent, state.pools, seen.now_s, seen.interval_s)]

    def _trusted(self, assessed: Assessment, needs: Mapping[Role, Need]) -> Mapping[Role, Need]:
        """The needs as far as a guessed profile is to be trusted; as they are by any other.

        Where nothing has been seen of a phase, the pool stays. Then it gets smaller by STEP at a time, so
        that what a replica does under more load is seen before the next step.
        """
        meta = self.engine.profile.meta
        if "guessed" not in meta:
            return needs
        seen, trusted = meta.get("refined", {}).get("seen", {}), dict(needs)
        for role, need in needs.items():
            target = self._delay(assessed, role).target
            phases = {"prefill", "decode"} if role is Role.MIXED else {role.value}
            if not phases <= seen.keys() and need.intervals <= UNSEEN_INTERVALS:
                trusted[role] = replace(need, replicas=target, enough=target, learning=True)
            else:
                trusted[role] = replace(need, enough=max(need.enough, ceil((1.0 - STEP) * target)))
        return trusted

    def _started(self, memory: PoolMemory, observation: Observation, role: Role) -> PoolMemory:
        pool, before = observation.pools[role], memory.starts.desired
        starts = memory.starts.observe(
            observation.now_s, observation.interval_s, pool, guess_s=self.own.lead_s
        )
        if role in self.settings.sleeping:
            fell = 0.5 ** (observation.interval_s / self.own.half_life_s)
            # Whoever it was that they rose for came before.
            came = 1.0 if isnan(observation.requests) else max(1.0, observation.requests)
            low = pool.desired if before is None else before
            memory = replace(memory, risen=risen(memory.risen, fell, low, pool.desired, came))
        return replace(memory, starts=starts, release=memory.release or ReleaseDelay(target=pool.desired))

    def _release(self, assessed: Assessment, needs: Mapping[Role, Need]) -> Mapping[Role, ReleaseDelay]:
        now_s = assessed.observation.now_s
        return {
            role: self._delay(assessed, role).after(
                now_s, need.replicas, need.enough, self._hold_s(role, need)
            )
            for role, need in needs.items()
        }

    def _hold_s(self, role: Role, need: Need) -> float:
        """Seconds after a raise in which nothing is released: none where the last replica falls asleep."""
        return 0.0 if need.enough == 0 and self.settings.limits[role].sleepers else self.own.hold_s

    def _delay(self, assessed: Assessment, role: Role) -> ReleaseDelay:
        known = assessed.state.pools[role].release
        return known or ReleaseDelay(target=assessed.observation.pools[role].desired)

    def _fit(
        self, delays: Mapping[Role, ReleaseDelay], needs: Mapping[Role, Need], assessed: Assessment
    ) -> Fit:
        limits, budget = self.settings.limits, self.settings.max_gpu_budget
        free = fit({role: delay.target for role, delay in delays.items()}, limits, None)
        if budget is None or gpus(free.targets, limits) <= budget:
            return free
        divided = divide_budget(
            {role: assessed.state.pool(role).history for role in delays},
            wished=free.targets,
            needed={role: need.replicas for role, need in needs.items()},
            held={role: assessed.held(role) for role in delays},
            limits=limits,
            budget=budget,
            moving=moving_share(assessed.lead_s, self.own.hold_s),
            half_life=lead_intervals(assessed.lead_s, self.interval_s),
            classes=class_pasts({role: assessed.state.pool(role).classes for role in delays}, self.settings),
        )
        targets = divided or fit(free.targets, limits, budget).targets
        return Fit(targets=targets, limits=(*free.limits, self.settings.budget_name))

    def _ordered(
        self, memory: PoolMemory, delay: ReleaseDelay, target: int, observation: Observation, role: Role
    ) -> PoolMemory:
        starts = memory.starts.order(observation.now_s, observation.pools[role], target)
        kept = self.settings.limits[role].sleepers
        return replace(memory, starts=starts, release=replace(delay, target=target), kept=kept)


def make_headway(settings: PolicySettings, profile: Profile | None) -> HeadwayPolicy:
    """PlanningError without a profile or engine rules, or where the minimums exceed the GPU budget."""
    if not isinstance(profile, Profile):
        raise PlanningError("planner.policy: headway needs a profile (engine.profile)")
    if settings.engine is None:
        raise PlanningError("planner.policy: headway needs to know how engines batch")
    check_budget(settings.limits, settings.max_gpu_budget)
    one, budget = gpus(one_each(settings.limits), settings.limits), settings.max_gpu_budget
    if budget is not None and one > budget:
        raise PlanningError(
            f"planner.max_gpu_budget: {budget} GPUs do not hold a replica of each pool ({one} GPUs)"
        )
    return HeadwayPolicy(settings, ReplayEngine.of(profile, settings.slo, settings.engine))
