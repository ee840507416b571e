"""`headway`: the smallest fleet that would have kept the promises on the traffic of late, as it is forecast.

Theory. Each interval

    learn     replay its requests through fleets of 1, 2, 3… replicas of each pool: loss curves (`learning`)
    judge     what past forecasts, times a safety factor, would have lost and cost by these (`judging`)
    choose    the cheapest forecast and factor per pool within one loss budget for all pools (`choosing`)
    add       what a queue that is already there needs (`backlog`)
    release   slowly (`release`), or lend to a pool that rises (`lending`); fit into limits and GPU budget

The forecast is for the time when a replica ordered now will serve; that lead is learnt (`lead`). So nothing
has to be set but the share of requests that may miss their SLO, and no average stands for a distribution.
Peaks shorter than the lead cannot be followed by anyone: then the cheapest options are those that hold them,
and the decision says so.

Where several deployments share a budget (`headway.planning.sharing`), the steps are apart: `look` learns and
judges, `demand` says what would be lost with how many GPUs, and `decide` plans within what was granted.

Missing data: requests not measured → targets are held. No single requests (`observation.traffic`) → Poisson
arrivals of mean lengths stand in. No output length known yet → decode holds. In the first LEARNING intervals
targets do not fall below the desired counts. A pool that may have no replica (`min_replicas` 0) goes to none
when no request came for the longest run-up (`learning`), and has one again at the first decision that sees a
request.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from headway.planning.budget import GPU_BUDGET, Fit, check_budget, fit, gpus
from headway.planning.errors import PlanningError
from headway.planning.hindsight import HeadwaySettings, headway_settings
from headway.planning.hindsight.binding import divide, moving_share
from headway.planning.hindsight.demand import PoolWish, gpu_losses
from headway.planning.hindsight.judging import Judgement, judge
from headway.planning.hindsight.lead import lead_intervals
from headway.planning.hindsight.learning import Planned, learn
from headway.planning.hindsight.lending import lend, role_changes
from headway.planning.hindsight.needs import Need, needs_of
from headway.planning.hindsight.outlook import Outlook
from headway.planning.hindsight.reasons import explain, with_grant
from headway.planning.hindsight.release import Hold
from headway.planning.hindsight.state import HindsightState, PoolMemory
from headway.planning.policies import PolicySettings
from headway.planning.reasons import check, ordered
from headway.planning.replay import ReplayEngine
from headway.planning.sharing import GpuLosses, Grant
from headway.planning.surfaces import Surfaces
from headway.planning.types import NO_CHANGES, Decision, Observation, Role, RoleChanges
from interp import Profile


@dataclass(frozen=True, slots=True)
class HeadwayPolicy:
    """Plans by hindsight."""

    settings: PolicySettings
    engine: ReplayEngine

    name = "headway"

    @property
    def own(self) -> HeadwaySettings:
        """The settings of this policy alone."""
        return headway_settings(self.settings)

    @property
    def interval_s(self) -> float:
        """Seconds between two decisions."""
        return self.settings.interval_s

    def initial_state(self) -> HindsightState:
        """Nothing learnt."""
        return HindsightState()

    def plan(self, observation: Observation, state: HindsightState) -> Decision:
        """One decision; see the module for missing data. PlanningError if a pool is missing."""
        return self.decide(self.look(observation, state))

    def look(self, observation: Observation, state: HindsightState) -> Outlook:
        """What is known after one more interval. PlanningError if a pool is missing."""
        check(observation, self.settings)
        roles = ordered(self.settings.limits)
        most = {role: self.settings.limits[role].max_replicas for role in roles}
        planned = Planned(engine=self.engine, most=most)
        state = learn(state, _of_pools(observation, roles), planned)
        memories = {role: self._started(state.pool(role), observation, role) for role in roles}
        leads_s = {role: self._lead_s(memory, observation) for role, memory in memories.items()}
        judged = {
            role: self._judge(memory, leads_s[role])
            for role, memory in memories.items()
            if observation.requests >= 0 and len(memory.history) >= 2
        }
        pools = replace(state, pools=memories)
        return Outlook(observation=observation, state=pools, judged=judged, leads_s=leads_s)

    def demand(self, outlook: Outlook) -> GpuLosses:
        """What would be lost with how many GPUs, up to what this policy holds where it has them."""
        needs = needs_of(outlook, self.settings)
        fitted = self._fit(self._holds(outlook, needs), needs, outlook)
        wishes = {
            role: PoolWish(
                limits=self.settings.limits[role],
                wanted=fitted.targets[role],
                held=outlook.observation.pools[role].desired,
                extra=need.extra,
                option=None if need.learning else need.option,
                judged=outlook.judged.get(role),
            )
            for role, need in needs.items()
        }
        moving = moving_share(outlook.lead_s, self.own.hold_s)
        return gpu_losses(wishes, outlook.rate_rps, moving)

    def decide(self, outlook: Outlook, grant: Grant | None = None) -> Decision:
        """The decision, within the GPUs of `grant` where there is one."""
        if grant is not None:
            narrow = replace(self.settings, max_gpu_budget=grant.gpus)
            decision = replace(self, settings=narrow).decide(outlook)
            return replace(decision, reasons=with_grant(decision.reasons, grant))
        observation, memories = outlook.observation, outlook.state.pools
        needs = needs_of(outlook, self.settings)
        holds = self._lent(self._holds(outlook, needs), needs, observation)
        fitted = self._fit(holds, needs, outlook)
        changes = self._changes(fitted, observation)
        pools = {
            role: self._ordered(memory, holds[role], fitted, observation, role, changes=changes)
            for role, memory in memories.items()
        }
        return Decision(
            targets=fitted.targets,
            next_state=replace(outlook.state, pools=pools),
            reasons=explain(observation, self.settings, needs, holds, fitted, changes=changes),
            changes=changes,
        )

    def _started(self, memory: PoolMemory, observation: Observation, role: Role) -> PoolMemory:
        pool = observation.pools[role]
        starts = memory.starts.observe(observation.now_s, observation.interval_s, pool)
        return replace(memory, starts=starts, hold=memory.hold or Hold(target=pool.desired))

    def _lead_s(self, memory: PoolMemory, observation: Observation) -> float:
        return memory.starts.lead_s(observation.now_s, self.own.lead_s)

    def _judge(self, memory: PoolMemory, lead_s: float) -> Judgement:
        half_life = self.own.half_life_s / self.interval_s
        return judge(memory.history, lead_intervals(lead_s, self.interval_s), self.interval_s, half_life)

    def _holds(self, outlook: Outlook, needs: Mapping[Role, Need]) -> Mapping[Role, Hold]:
        memories, observation = outlook.state.pools, outlook.observation
        return {role: self._hold(memories[role], need, observation, role) for role, need in needs.items()}

    def _hold(self, memory: PoolMemory, need: Need, observation: Observation, role: Role) -> Hold:
        pool = observation.pools[role]
        before = memory.hold or Hold(target=pool.desired)
        return before.need(observation.now_s, need.replicas, need.enough, self.own.hold_s)

    def _lent(
        self, holds: Mapping[Role, Hold], needs: Mapping[Role, Need], observation: Observation
    ) -> Mapping[Role, Hold]:
        if self.own.role_change_s is None:
            return holds
        limits, budget = self.settings.limits, self.settings.max_gpu_budget
        lent = lend(holds, {role: need.enough for role, need in needs.items()}, observation.pools, limits)
        if budget is None or gpus({role: hold.target for role, hold in lent.items()}, limits) <= budget:
            return lent
        return lend(holds, {role: need.replicas for role, need in needs.items()}, observation.pools, limits)

    def _changes(self, fitted: Fit, observation: Observation) -> RoleChanges:
        if self.own.role_change_s is None:
            return NO_CHANGES
        return role_changes(fitted.targets, observation.pools, self.settings.limits)

    def _fit(self, holds: Mapping[Role, Hold], needs: Mapping[Role, Need], outlook: Outlook) -> Fit:
        limits, budget = self.settings.limits, self.settings.max_gpu_budget
        free = fit({role: hold.target for role, hold in holds.items()}, limits, None)
        if budget is None or gpus(free.targets, limits) <= budget:
            return free
        divided = divide(
            {role: outlook.state.pool(role).history for role in holds},
            wished=free.targets,
            needed={role: need.replicas for role, need in needs.items()},
            held={role: outlook.observation.pools[role].desired for role in holds},
            limits=limits,
            budget=budget,
            moving=moving_share(outlook.lead_s, self.own.hold_s),
            half_life=lead_intervals(outlook.lead_s, self.interval_s),
        )
        targets = divided or fit(free.targets, limits, budget).targets
        return Fit(targets=targets, limits=(*free.limits, GPU_BUDGET))

    def _ordered(
        self,
        memory: PoolMemory,
        hold: Hold,
        fitted: Fit,
        observation: Observation,
        role: Role,
        *,
        changes: RoleChanges,
    ) -> PoolMemory:
        target = fitted.targets[role]
        taken = sum(count for (_, taker), count in changes.items() if taker is role)
        given = sum(count for (giver, _), count in changes.items() if giver is role)
        pool = observation.pools[role]
        moved = replace(pool, desired=pool.desired + taken - given)
        starts = memory.starts.change(taken, given).order(observation.now_s, moved, target)
        return replace(memory, starts=starts, hold=replace(hold, target=target))


def _of_pools(observation: Observation, roles: tuple[Role, ...]) -> Observation:
    """The observation with these pools alone, in their order."""
    return replace(observation, pools={role: observation.pools[role] for role in roles})


def make_headway(settings: PolicySettings, profile: Surfaces | None) -> HeadwayPolicy:
    """PlanningError without a profile or engine rules, or where the minimums exceed the GPU budget."""
    if not isinstance(profile, Profile):
        raise PlanningError("planner.policy: headway needs a profile (engine.profile)")
    if settings.engine is None:
        raise PlanningError("planner.policy: headway needs to know how engines batch")
    check_budget(settings.limits, settings.max_gpu_budget)
    return HeadwayPolicy(settings, ReplayEngine.of(profile, settings.slo, settings.engine))
