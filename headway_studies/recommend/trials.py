"""One candidate on the trace: what can be told without simulating, its least fixed fleet, the policy on it.

    attainable   requests whose SLO an idle replica keeps (`reach`): below the target no fleet meets the SLO.
                 Not used with a prefix cache, which shortens prefills
    bound        aim × fluid bound (`demand_gpu_s`): fewer GPU-hours cannot do the work that must be in time.
                 With a prefix cache only the decode part, since hits save prefill
    least        GPU-hours of each pool's minimum: a policy that follows the load pays that at least
    budget       the loss budget of `headway`, a share of the attainable requests, with which the share of all
                 requests is the target: 1 − target / attainable. 1 − target where all are attainable, or none
                 is known. A policy that misses the target by less than its noise is tried again without miss
                 and noise, TRIES times in all, unless the configuration sets the budget
    noise        half of attainment's 95 % interval. Losses come in bursts, so batches of minutes are judged:
                 with mⱼ of nⱼ requests lost in batch j of k, t √(k / (k−1) Σ (mⱼ − nⱼ m / n)²) / n, and
                 3 / n at least, since where none was lost so many might have been

Each figure of a fleet is that of a simulation of the whole trace.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, isfinite, sqrt

import numpy as np
from scipy.special import stdtrit

from headway.config import HeadwayConfig
from headway.engine.surfaces import idle_itl_s
from headway.planning import Role
from headway.planning.deciding import gpus
from headway.simulation.build import Plan, make_plan, make_scenario, run
from headway.simulation.demand import Reach, demand_gpu_s, interval_loads, reach, requirements
from headway.simulation.report import Minutes, SimulationReport
from headway.simulation.results import RunSetting
from headway.simulation.scenario import ClassMix, request_classes
from headway.words import milliseconds, percent
from headway.workload import Trace
from headway_studies.recommend.candidates import Candidate
from headway_studies.recommend.fleets import Fleet, LeastFleet, least_fleet

HOUR_S = 3600.0
ANY_NUMBER = 100_000
"""Replicas that a pool without a limit may have in the search."""
ANY_BUDGET = 10**9
BUDGET_KEY = "planner.headway.loss_budget"
FEWEST_ALLOWED = 16
NEGLIGIBLE = 0.05
"""Part of the requests that may be lost: so few that no fleet keeps are left out of account."""
TRIES, BATCHES = 3, 20
LEAST_LEFT = 0.25
"""Part of the loss budget that the next try has at least."""
ROOM = 2
"""A pool to which the configuration gives no limit may grow to so many times its least fixed count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What can be told of a candidate without simulating; `problem` says why no fleet meets the SLO.

    `gpus_per_replica` and `guess`, a fleet for the busiest interval, are by role. `loss_budget` is None where
    the policy's own will do.
    """

    attainable: float
    bound_gpu_hours: float
    least_gpu_hours: float
    gpus_per_replica: Mapping[Role, int]
    guess: Fleet
    loss_budget: float | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A simulation of a candidate. `fleet` is fixed, or the most of each pool that the policy asked for.

    `noise` is half of attainment's 95 % interval, `beside` a fixed fleet's neighbours and what they attain,
    `tries` what the policy attained by loss budget.
    """

    fleet: Fleet
    attainment: float
    gpu_hours: float
    overrides: Mapping[str, object]
    report: SimulationReport
    noise: float = 1.0
    beside: Sequence[tuple[Fleet, float]] = ()
    tries: Mapping[float, float] = field(default_factory=dict)


def facts(candidate: Candidate, trace: Trace) -> Facts:
    """Three passes over the trace, without a simulation. Errors of the configuration name the key."""
    plan = make_plan(_searched(candidate, dict.fromkeys(candidate.mode.roles, 1)))
    slo, limits, aim = plan.settings.slo, plan.settings.limits, plan.config.slo.attainment
    mix = ClassMix(request_classes(plan.config), slo, plan.config.simulation.seed)
    known = reach(trace, mix, plan.idle)
    demand = demand_gpu_s(trace, plan.profile, slo, shared_iterations=plan.engine.chunk_tokens > 0)
    cached = bool(plan.engine.prefix_cache_tokens and trace.stats.blocks)
    work_s = demand[Role.DECODE] + (0.0 if cached else demand[Role.PREFILL])
    minimum = gpus({role: pool.min_replicas for role, pool in limits.items()}, limits)
    share = known.attainable / max(1, known.requests)
    return Facts(
        attainable=share,
        bound_gpu_hours=aim * work_s / HOUR_S,
        least_gpu_hours=minimum * trace.duration_s / HOUR_S,
        gpus_per_replica={role: pool.gpus_per_replica for role, pool in limits.items()},
        guess=_busiest(plan, trace, sum(demand.values())),
        loss_budget=None if cached else _loss_budget(candidate, share, aim),
        problem=None if cached or share >= aim else _out_of_reach(plan, trace, known, mix),
    )


def _loss_budget(candidate: Candidate, attainable: float, aim: float) -> float | None:
    """The loss budget to set, rounded to four digits; one that the configuration sets is kept."""
    lost_anyway = 1.0 - attainable > NEGLIGIBLE * (1.0 - aim) and _own_budget(candidate) is None
    return float(f"{1.0 - aim / attainable:.4g}") if lost_anyway and attainable > aim else None


def _own_budget(candidate: Candidate) -> float | None:
    """The loss budget that the configuration sets."""
    found: float | None = getattr(candidate.base.config().planner.section("headway"), "loss_budget", None)
    return found


def _busiest(plan: Plan, trace: Trace, work_s: float) -> Fleet:
    """The most that the reference formulas ask for in any interval; where they cannot say, the mean work."""
    found = dict.fromkeys(plan.settings.limits, 0.0)
    for load, span_s in interval_loads(trace, plan.settings.interval_s):
        needs = requirements(load, span_s, plan.settings, plan.profile)
        found = {role: max(most, needs[role]) for role, most in found.items()}
    mean = work_s / max(1.0, trace.duration_s)
    return {role: max(1, ceil(most if isfinite(most) else mean)) for role, most in found.items()}


def _out_of_reach(plan: Plan, trace: Trace, known: Reach, mix: ClassMix) -> str:
    """The targets that idle replicas miss, and without classes those that they would keep."""
    reasons = []
    slo, aim = plan.settings.slo, plan.config.slo.attainment
    for name, missed, target_s, kept_s in zip(
        ("TTFT", "ITL"),
        (known.ttft_missed, known.itl_missed),
        (slo.ttft_s, slo.itl_s),
        _kept_when_idle(plan, trace, aim),
        strict=True,
    ):
        if missed:
            instead = "" if mix.named else f" ({percent(aim)} keep {milliseconds(kept_s)} ms)"
            share = percent(missed / known.requests)
            reasons.append(f"{name} of {target_s * 1e3:g} ms is missed by {share} of requests{instead}")
    if not reasons:
        reasons.append("requests are too long for its KV cache")
    attained = percent(known.attainable / known.requests)
    return f"unreachable, even when idle ({attained} of requests within SLO): {'; '.join(reasons)}"


def _kept_when_idle(plan: Plan, trace: Trace, share: float) -> tuple[float, float]:
    """The least TTFT and ITL, in seconds, that a share of the requests keeps on an idle replica."""
    columns: list[tuple[np.ndarray, np.ndarray]] = []
    for chunk in trace.chunks():
        isl, osl = chunk.input_tokens.astype(np.float64), chunk.output_tokens.astype(np.float64)
        itl_s = np.where(osl > 1, idle_itl_s(plan.profile, isl + osl / 2), 0.0)
        columns.append((plan.idle.ttft_s(isl), itl_s))
    ttft_s, itl_s = (np.concatenate(column) for column in zip(*columns, strict=True))
    kept = (float(np.quantile(column, share, method="higher")) for column in (ttft_s, itl_s))
    return next(kept), next(kept)


def fixed(candidate: Candidate, known: Facts, trace: Trace) -> tuple[Outcome | None, str | None]:
    """The least fixed fleet that meets the SLO on the whole trace, or why there is none."""
    reports: dict[tuple[int, ...], SimulationReport] = {}

    def attain(fleet: Fleet) -> float:
        report = _simulated(_searched(candidate, fleet), trace)
        reports[tuple(fleet.values())] = report
        return report.attainment or 0.0

    plan = make_plan(_searched(candidate, dict.fromkeys(candidate.mode.roles, 1)))
    limits = plan.settings.limits
    found = least_fleet(attain, known.guess, limits, plan.config.slo.attainment)
    if found.fleet is None:
        return None, _too_few(found, plan)
    needed, budget = gpus(found.fleet, limits), candidate.base.config().planner.max_gpu_budget
    if budget is not None and needed > budget:
        return None, f"needs {needed} GPUs, more than the {budget} there are ({_counts(found.fleet)})"
    report = reports[tuple(found.fleet.values())]
    settings = candidate.settings(_room(found.fleet), found.fleet)
    return replace(_outcome(found.fleet, settings, report), beside=found.beside), None


def followed(candidate: Candidate, known: Facts, fleet: Fleet, trace: Trace) -> Outcome:
    """The policy `headway` on the candidate whose least fixed fleet is `fleet`: the try that attains most."""
    aim, last, found, tries = candidate.base.config().slo.attainment, known.loss_budget, [], {}
    own = _own_budget(candidate)
    for _ in range(TRIES):
        settings = candidate.settings(_room(fleet), None) | ({} if last is None else {BUDGET_KEY: last})
        report = _simulated(candidate.base.config(settings), trace)
        most = {Role(role): int(max(series.desired)) for role, series in report.replicas.items()}
        found.append(outcome := _outcome(most, settings, report))
        budget = last if last is not None else 1.0 - aim if own is None else own
        missed = aim - outcome.attainment
        tries[budget] = outcome.attainment
        if not 0.0 < missed < outcome.noise or own is not None:
            break
        last = float(f"{max(LEAST_LEFT * budget, budget - missed - outcome.noise):.4g}")
    return replace(max(found, key=lambda each: each.attainment), tries=tries)


def _outcome(fleet: Fleet, settings: Mapping[str, object], report: SimulationReport) -> Outcome:
    return Outcome(
        fleet=fleet,
        attainment=report.attainment or 0.0,
        gpu_hours=report.gpu_hours,
        overrides=settings,
        report=report,
        noise=noise(report.minutes) if report.minutes else 1.0,
    )


def noise(minutes: Minutes) -> float:
    """Half of attainment's 95 % interval; 1 where a single minute is all that there is."""
    met, *ended = (np.array(each) for each in (minutes.met, minutes.completed, minutes.shed, minutes.failed))
    begins = np.linspace(0, len(met), min(BATCHES, len(met)), endpoint=False).astype(np.int64)
    requests = np.add.reduceat(sum(ended), begins)
    lost, total, batches = requests - np.add.reduceat(met, begins), int(requests.sum()), len(begins)
    if batches < 2 or total == 0:
        return 1.0
    spread = sqrt(batches / (batches - 1) * np.square(lost - requests * lost.sum() / total).sum()) / total
    return min(1.0, max(3.0 / total, float(stdtrit(batches - 1, 0.975)) * spread))


def _searched(candidate: Candidate, fleet: Fleet) -> HeadwayConfig:
    """A fixed fleet of any size: what is needed is compared with the budget at the end."""
    limits = dict.fromkeys(candidate.mode.roles, ANY_NUMBER)
    return candidate.base.config(candidate.settings(limits, fleet) | {"planner.max_gpu_budget": ANY_BUDGET})


def _room(fleet: Fleet) -> Mapping[Role, int]:
    return {role: max(FEWEST_ALLOWED, ROOM * count) for role, count in fleet.items()}


def _simulated(config: HeadwayConfig, trace: Trace) -> SimulationReport:
    plan = make_plan(config)
    limits = plan.settings.limits
    setting = RunSetting(
        profile=plan.profile_name,
        aim=config.slo.attainment,
        adjustment_interval_s=plan.policy.interval_s,
        gpus_per_replica={role.value: pool.gpus_per_replica for role, pool in limits.items()},
    )
    return run(plan, make_scenario(plan, trace), trace).report(setting)


def _too_few(found: LeastFleet, plan: Plan) -> str:
    bound = ", ".join(_at_limit(found.largest, plan))
    limits = f" ({bound} allows no more)" if bound else ""
    return f"no fleet keeps it: {_counts(found.largest)} attain {percent(found.attained)}{limits}"


def _at_limit(fleet: Fleet, plan: Plan) -> Iterator[str]:
    for role, pool in plan.settings.limits.items():
        if fleet[role] == pool.max_replicas:
            yield f"pools.{role}.max_replicas"


def _counts(fleet: Fleet) -> str:
    return ", ".join(f"{count} {role}" for role, count in fleet.items())
