"""One GPU budget of deployments that decide one by one: what each may take at its own decision.

Theory. `sharing.share` divides B among losses that are known at one time. Live, each deployment decides at
times of its own; of the others it is known what they stated last, and what is due to deployment k is d_k of
the division of that. Others still hold h_j, the GPUs of their last targets, so k may take

    t_k = min(d_k, max(h_k, B − Σ max(h_j, o_j)))      over j ≠ k, by whole replicas

with o_j, what j is promised whatever comes: its minimum, and the part of its floor that is never lent. So Σ h
never rises above B, in whatever order they decide: only the decision of the holder gives GPUs back. Whoever
holds more than is due to it (`Division.over`) should decide at once, and then who waits (t_k < d_k).

What has not stated its losses, or not of late, counts with what it holds, and needs all of that more than
others of its priority need anything. Where minimums or floors exceed B nothing can be divided: each keeps at
most what it holds, and its grant says why.

By windows of a schedule a minimum m_k may be above the pools' own, n_k. Where all m do not fit beside the
floors f, they do as far as B − Σ max(n_k, f_k) goes, in order of priority, each up to its ceiling; what is
cut is needed as if it had not been stated.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Protocol

import numpy as np

from headway.planning.deciding import (
    Bounds,
    by_schedule,
    call,
    check_decision,
    fewer_by_schedule,
    in_steps,
)
from headway.planning.demands import decide_within, demanded
from headway.planning.hindsight.needs import needs_of
from headway.planning.hindsight.policy import HeadwayPolicy
from headway.planning.hindsight.state import HindsightState
from headway.planning.placement import Placement
from headway.planning.sharing import Demand, GpuLosses, Grant, Standing, share, up_to
from headway.planning.sleeping import SleepingPool
from headway.planning.types import Decision, Observation, PlanningError, Role

FLEET_GPUS = "fleet.gpus"

NEEDED_RPS = 1e6
"""Requests/s that a deployment is taken to lose without what it holds, until it has stated its losses."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Claim:
    """One deployment: the GPUs that it `holds` and its minimum, and the losses that it has stated, if any.

    Of those that it holds it `keeps` so many by a decision that is being carried out; None: there is none.
    `sleeping` are its pools whose engines may sleep, for as long as it has stated nothing.
    """

    name: str
    standing: Standing
    holds: int
    minimum_gpus: int
    losses: GpuLosses | None = None
    keeps: int | None = None
    sleeping: tuple[SleepingPool, ...] = ()

    @property
    def demand(self) -> Demand:
        """Its part in the division."""
        held = self.holds if self.keeps is None else self.keeps
        losses = self._unstated() if self.losses is None else replace(self.losses, held_gpus=held)
        return Demand(name=self.name, losses=losses, standing=self.standing)

    def _unstated(self) -> GpuLosses:
        wanted = max(self.holds, self.minimum_gpus)
        missing = wanted - np.arange(self.minimum_gpus, wanted + 1)
        return GpuLosses(
            minimum_gpus=self.minimum_gpus,
            lost_rps=NEEDED_RPS * missing / max(wanted, 1),
            held_gpus=self.holds,
            sleeping=self.sleeping,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveGrant(Grant):
    """The same of a deployment that decides alone: GPUs due to it are `awaited` from those that hold them
    still; `fault` says why the budget cannot be divided. It is without those `lent` until it is asked again.
    """

    awaited: Mapping[str, int] = field(default_factory=dict)
    fault: str = ""
    lent: int = 0

    def missing(self) -> list[str]:
        """Where the GPUs are that it lacks."""
        awaited = [f"{gpus} still held by {name}" for name, gpus in self.awaited.items()]
        lent = [f"{self.lent} lent to engines that wait for the same GPU"] if self.lent else []
        return [*Grant.missing(self), *awaited, *lent, *([self.fault] if self.fault else [])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """A budget of so many GPUs as it is due to the deployments, see the module."""

    gpus: int
    claims: Mapping[str, Claim]
    demands: Mapping[str, Demand]
    due: Mapping[str, Grant]
    fault: str = ""

    @property
    def free(self) -> int:
        """GPUs that nobody holds; below 0 where more are held than there are."""
        return self.gpus - sum(claim.holds for claim in self.claims.values())

    @property
    def over(self) -> Mapping[str, int]:
        """GPUs that deployments hold beyond what is due to them."""
        more = {name: claim.holds - self.due[name].gpus for name, claim in self.claims.items()}
        return {name: gpus for name, gpus in more.items() if gpus > 0}

    @property
    def crowding(self) -> list[str]:
        """Deployments that keep more engines for sleep than are due to them."""
        return [
            name
            for name, claim in self.claims.items()
            for pool in claim.demand.losses.sleeping
            if pool.kept > max(pool.held, self.due[name].sleepers.get(pool.role, pool.kept))
        ]

    def waits(self, name: str) -> int:
        """GPUs that are due to a deployment, but held by others."""
        return self.due[name].gpus - self.grant(name).gpus

    def grant(self, name: str) -> LiveGrant:
        """What a deployment may take now; less than its minimum where not even that is free."""
        own, due = self.claims[name], self.due[name]
        most = max(own.holds, self.gpus - sum(map(self._not_to_be_had, self.claims.keys() - {name})))
        losses = self.demands[name].losses
        gpus = min(due.gpus, losses.whole(most)) if most >= losses.minimum_gpus else most
        over = {other: more for other, more in self.over.items() if other != name}
        return replace(self.planned(name), gpus=gpus, awaited=up_to(due.gpus - gpus, over))

    def planned(self, name: str) -> LiveGrant:
        """What is due to a deployment, as its grant."""
        due = self.due[name]
        return LiveGrant(
            gpus=due.gpus,
            wanted=due.wanted,
            ahead=due.ahead,
            kept_free=due.kept_free,
            above_ceiling=due.above_ceiling,
            sleepers=due.sleepers,
            fault=self.fault,
        )

    def _not_to_be_had(self, name: str) -> int:
        """GPUs of a deployment that no other may take."""
        claim = self.claims[name]
        return max(claim.holds, self.demands[name].losses.whole(claim.standing.own_gpus))


def divide(claims: Iterable[Claim], gpus: int, host_memory: float = inf) -> Division:
    """The division of a budget by what is known now."""
    known = {claim.name: claim for claim in claims}
    demands = within_minimums(
        {name: claim.demand for name, claim in known.items()},
        {name: claim.minimum_gpus for name, claim in known.items()},
        gpus,
    )
    try:
        due = share(demands.values(), gpus, host_memory)
        return Division(gpus=gpus, claims=known, demands=demands, due=due)
    except PlanningError as error:
        kept = {
            name: Grant(
                gpus=max(known[name].holds, each.losses.minimum_gpus),
                wanted=each.losses.wanted_gpus,
                ahead={},
            )
            for name, each in demands.items()
        }
        return Division(gpus=gpus, claims=known, demands=demands, due=kept, fault=str(error))


def within_minimums(demands: Mapping[str, Demand], own: Mapping[str, int], gpus: int) -> dict[str, Demand]:
    """The demands with minimums as far as all fit, none below the `own` of its pools; see the module."""
    due = {name: max(own[name], demand.standing.floor_gpus) for name, demand in demands.items()}
    spare, found = gpus - sum(due.values()), dict(demands)
    for name, demand in sorted(demands.items(), key=lambda one: (-one[1].standing.priority, one[0])):
        losses, ceiling = demand.losses, demand.standing.ceiling_gpus
        most = losses.minimum_gpus if ceiling is None else min(ceiling, losses.minimum_gpus)
        raised = max(0, min(most - due[name], spare))
        lacking = losses.minimum_gpus - due[name] - raised
        spare -= raised
        if lacking > 0:
            more = -(-lacking // losses.unit_gpus) * losses.unit_gpus
            found[name] = replace(
                demand, losses=losses.from_fewer(max(own[name], losses.minimum_gpus - more), NEEDED_RPS)
            )
    return found


class Share(Protocol):
    """The part of the budget that a deployment decides within."""

    def place(self, wanted: Mapping[Role, int], losses: GpuLosses) -> Placement:
        """Of the replicas wanted, with these losses, those that find room."""

    def ask(self, losses: GpuLosses, interval_s: float, wanted: int, unplaced: str) -> Grant:
        """What it may take by its losses, though it wants so many GPUs, some of which are `unplaced`."""


def decide_granted(
    policy: HeadwayPolicy, observation: Observation, state: HindsightState, bounds: Bounds, part: Share
) -> Decision:
    """`deciding.decide` within what is granted for the losses that the policy states, without replicas that
    find room on no node; raises what the part does, too.
    """
    name, interval_s = policy.name, policy.interval_s
    in_force = bounds.at(observation.now_s, call(name, policy.starts_s, state))
    policy = policy.within(in_force.limits)
    assessed = call(name, policy.assess, observation, state)
    losses = all_losses = call(name, demanded, policy, assessed)
    wanted = call(name, policy.wanted, assessed, needs_of(assessed, policy.settings))
    if (found := part.place(wanted, all_losses)).most:
        policy = policy.within(found.within(in_force.limits))
        losses = call(name, demanded, policy, assessed)
    grant = part.ask(losses, interval_s, all_losses.wanted_gpus, found.words)
    if grant.gpus < losses.minimum_gpus:
        in_force = replace(in_force, limits=fewer_by_schedule(in_force.limits, bounds.limits, grant.gpus))
        policy = policy.within(fewer_by_schedule(policy.settings.limits, bounds.limits, grant.gpus))
    within = replace(in_force, max_gpu_budget=grant.gpus)
    if grant.words:
        policy = replace(policy, settings=replace(policy.settings, budget_name=FLEET_GPUS))
    decision = call(name, decide_within, policy, assessed, grant)
    check_decision(name, decision, within.limits, grant.gpus)
    if bounds.schedule is not None:
        decision = by_schedule(decision, within)
    return in_steps(decision, observation.pools, within)
