"""The policy as a whole: settles, holds without data, keeps budget and limits, learns its lead."""

import json
import pickle
import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from planning_cases import NAN, PROFILE, observed, settings, why
from planning_cases import run as decisions_of

from headway.config import load_config
from headway.planning import PlanningError, PoolState, Role, make_policy
from headway.planning.hindsight.learning import Traffic
from headway.planning.hindsight.policy import UNSEEN_INTERVALS
from headway.simulation import build
from headway.workload import open_trace
from interp import scaled

INTERVAL_S = 30.0


def policy(profile=PROFILE, **changes):
    return make_policy("headway", settings(interval_s=INTERVAL_S, **changes), profile)


def traffic(tick, rate, *, even=False, isl=1000.0, osl=100.0, cached=None):
    rng = np.random.default_rng(tick)
    count = round(rate * INTERVAL_S) if even else rng.poisson(rate * INTERVAL_S)
    within = np.arange(1, count + 1) / count if even else np.sort(rng.uniform(0.0, 1.0, count))
    arrival_s = (tick + within) * INTERVAL_S
    lengths = np.full(count, isl)
    return Traffic(
        arrival_s=arrival_s,
        input_tokens=lengths,
        completed_input_tokens=lengths,
        completed_output_tokens=np.full(count, osl),
        completed_cached_tokens=None if cached is None else cached * lengths,
    )


class Fleet:
    """Pools that follow their targets after `delay` intervals."""

    def __init__(self, delay=2, ready=2):
        self.delay, self.ready = delay, dict.fromkeys((Role.PREFILL, Role.DECODE), ready)
        self.ordered = {role: [] for role in self.ready}

    def pools(self):
        return {
            role: PoolState(
                desired=ready + sum(n for _, n in self.ordered[role]),
                starting=sum(n for _, n in self.ordered[role]),
                ready=ready,
                draining=0,
                running=5.0,
                waiting=0.0,
            )
            for role, ready in self.ready.items()
        }

    def scale(self, tick, targets):
        for role, target in targets.items():
            more = target - self.pools()[role].desired
            if more > 0:
                self.ordered[role].append((tick + self.delay, more))
            elif more < 0:
                self.ordered[role] = []
                self.ready[role] = min(self.ready[role], target)

    def arrive(self, tick):
        for role in self.ready:
            self.ready[role] += sum(n for due, n in self.ordered[role] if due <= tick)
            self.ordered[role] = [(due, n) for due, n in self.ordered[role] if due > tick]


def run(planner, rates, fleet=None, *, even=False, isl=1000.0, cached=None, corrected=None):
    """Targets and reasons of each decision; a rate of None is an interval that was not measured.

    `corrected` has planners with other surfaces, by the tick from which on they plan.
    """
    fleet, state, decisions = fleet or Fleet(), planner.initial_state(), []
    for tick, rate in enumerate(rates):
        planner = (corrected or {}).get(tick, planner)
        fleet.arrive(tick)
        seen = None if rate is None else traffic(tick, rate, even=even, isl=isl, cached=cached)
        observation = observed(
            now_s=(tick + 1) * INTERVAL_S,
            interval_s=INTERVAL_S,
            requests=NAN if seen is None else float(len(seen.arrival_s)),
            isl_tokens=1000.0,
            osl_tokens=100.0,
            pools=fleet.pools(),
            traffic=seen,
        )
        decision = planner.plan(observation, state)
        state = decision.next_state
        fleet.scale(tick, decision.targets)
        decisions.append(decision)
    return decisions


def targets(decisions, role=Role.PREFILL):
    return [decision.targets[role] for decision in decisions]


def reversals(counts):
    steps = [later - earlier for earlier, later in pairwise(counts) if later != earlier]
    return sum(one * other < 0 for one, other in pairwise(steps))


def test_constant_load_settles_and_stays():
    decisions = run(policy(), [20.0] * 80, even=True)
    for role in (Role.PREFILL, Role.DECODE):
        last = targets(decisions[10:], role)
        assert last == sorted(last, reverse=True)
        assert last[30:] == [last[-1]] * len(last[30:])


def test_prompts_are_planned_for_as_far_as_engines_compute_them():
    whole, nothing, most = (run(policy(), [20.0] * 30, cached=share) for share in (None, 0.0, 0.75))
    assert targets(whole) == targets(nothing)
    needs = [decisions[-1].reasons["needs"]["prefill"]["option"]["expected"] for decisions in (whole, most)]
    assert needs[1] < 0.5 * needs[0]
    assert targets(most)[-1] < targets(whole)[-1]
    assert targets(most, Role.DECODE)[-1] == targets(whole, Role.DECODE)[-1]


def test_prompts_that_only_a_cache_makes_attainable_are_planned_for():
    hopeless, possible = (run(policy(), [2.0] * 20, isl=8_000.0, cached=share) for share in (0.0, 0.9))
    infeasible = [each[-1].reasons["needs"]["prefill"]["infeasible"] for each in (hopeless, possible)]
    assert infeasible == [1.0, 0.0]


def test_what_no_fleet_serves_any_more_by_corrected_surfaces_does_not_explode_the_plan():
    """Just before, fleets of 20 and more could have saved the requests, as it seemed then."""
    slower, too_slow = (policy(scaled(PROFILE, speed)) for speed in (0.4, 0.25))
    decisions = run(policy(), [20.0] * 40, corrected={3: slower, 9: too_slow})
    need = decisions[-1].reasons["needs"]["prefill"]
    assert max(targets(decisions[:9])) > 1.5 * need["option"]["expected"]
    assert need["infeasible"] == 1.0
    assert targets(decisions)[-1] <= need["option"]["expected"] + 1.0
    assert any("is unreachable, even when idle" in text for text in decisions[-1].reasons["warnings"])
    assert "The SLO of 100 % of requests is unreachable, even when idle." in decisions[-1].reasons["summary"]


def test_chance_alone_hardly_moves_the_targets():
    decisions = run(policy(), [20.0] * 100)[30:]
    assert reversals(targets(decisions)) + reversals(targets(decisions, Role.DECODE)) <= 3


def test_a_rise_is_followed_and_a_fall_is_followed_slowly():
    prefill = targets(run(policy(), [10.0] * 30 + [60.0] * 30 + [10.0] * 60))
    assert prefill[59] > 2 * prefill[29]
    assert prefill[65] > prefill[-1]


def test_nothing_is_done_without_data():
    decisions = run(policy(), [20.0] * 20 + [None] * 20)
    assert targets(decisions[19:]) == [targets(decisions)[19]] * 21
    assert run(policy(), [None] * 5)[-1].targets == {Role.PREFILL: 2, Role.DECODE: 2}


@pytest.mark.slow
def test_one_interval_without_requests_or_without_data_changes_little():
    steady = targets(run(policy(), [20.0] * 40))
    for gap in (0.0, None):
        broken = targets(run(policy(), [20.0] * 25 + [gap] + [20.0] * 14))
        assert max(abs(a - b) for a, b in zip(steady, broken, strict=True)) <= 1


def test_without_traffic_the_minimum_is_reached():
    assert run(policy(), [20.0] * 20 + [0.0] * 200)[-1].targets == {Role.PREFILL: 1, Role.DECODE: 1}


@pytest.mark.slow
def test_a_start_longer_than_the_interval_does_not_pile_up_orders():
    # Twice for what a jump without precedent may be taken for, twice for the queue, and what grew meanwhile.
    highest = max(targets(run(policy(), [10.0] * 20 + [60.0] * 40, Fleet(delay=8))))
    assert highest <= 6 * max(targets(run(policy(), [60.0] * 30, Fleet(delay=0))))


def test_the_lead_is_learnt_from_starts():
    decisions = run(policy(), [10.0] * 10 + [60.0] * 40, Fleet(delay=6))
    lead_s = decisions[-1].reasons["needs"]["prefill"]["lead_s"]
    assert lead_s == pytest.approx(6 * INTERVAL_S)


def test_counts_alone_are_planned_for_as_poisson_traffic():
    counts = {"interval_s": INTERVAL_S, "requests": 600.0}
    decision = decisions_of(policy(), [observed(now_s=tick * INTERVAL_S, **counts) for tick in range(1, 21)])[
        -1
    ]
    recorded = run(policy(), [20.0] * 20)[-1]
    assert abs(decision.targets[Role.PREFILL] - recorded.targets[Role.PREFILL]) <= 1


def test_reasons_say_it_in_words_and_hold_no_arrays():
    reasons = run(policy(), [20.0] * 30)[-1].reasons
    assert re.fullmatch(
        r"Prefill needs \d+(; keeping \d+ for now)?\. Decode needs \d+.*\.", reasons["summary"]
    )
    assert re.search(r"work for .* would have kept \d+(\.\d+)? % of what could be kept", why(reasons))
    assert "even when idle" not in why(reasons)
    assert len(json.dumps(reasons)) < 8_000


def test_it_needs_a_profile_and_the_rules_of_engines():
    with pytest.raises(PlanningError, match="needs a profile"):
        make_policy("headway", settings(), None)
    with pytest.raises(PlanningError, match="how engines batch"):
        make_policy("headway", settings(engine=None), PROFILE)


def test_peaks_that_nobody_can_follow_are_held_and_said():
    rates = [90.0 if tick % 9 == 8 else 10.0 for tick in range(63)]
    reasons = run(policy(), rates, Fleet(delay=4))[-1].reasons
    peaks = "load peaks every 4.5 min faster than a replica starts"
    assert any(peaks in warning for warning in reasons["warnings"])
    calm = run(policy(), [50.0] * 30)[-1].reasons
    assert not any("load peaks" in warning for warning in calm["warnings"])


def test_replicas_for_a_peak_that_is_over_say_when_that_ends():
    decisions = run(policy(), [2.0] * 20 + [60.0] * 2 + [0.0] * 28)
    said = [one.reasons["summary"] for one in decisions]
    assert "peak" not in said[22]
    assert said[-1].startswith(
        "Prefill needs 5 for the peak 14 min ago (until calmer traffic outweighs it, or 7.8 h have passed)"
    )
    assert "peak" not in run(policy(), [20.0] * 60)[-1].reasons["summary"]


def test_a_choice_that_no_request_has_judged_is_not_praised():
    text = why(run(policy(), [60.0] * 2 + [0.0] * 40)[-1].reasons)
    assert "(peak)" in text
    assert "No request came by which to judge it in the last 42 intervals" in text
    assert "would have kept" not in text.partition("decode:")[0]


def test_a_state_survives_the_planner():
    planner = policy()
    state = run(planner, [20.0] * 30)[-1].next_state
    observation = observed(now_s=930.0, interval_s=INTERVAL_S, requests=600.0, traffic=traffic(30, 20.0))
    stored = pickle.dumps(state)
    assert planner.plan(observation, pickle.loads(stored)).reasons == planner.plan(observation, state).reasons
    assert len(stored) < 1_000_000


def test_a_first_burst_is_said_to_have_been_beyond_any_past():
    decisions = run(policy(), [1.0] * 12 + [60.0] + [1.0] * 4)
    said = [any("no history could predict" in each for each in one.reasons["warnings"]) for one in decisions]
    assert not any(said[:12])
    assert all(said[13:])


STEP = "step:rate_rps=2,peak_rps=24,at_s=120,back_at_s=500,duration_s=500,input_tokens=2000,output_tokens=400"


def test_prompts_that_wait_are_planned_for_in_the_decode_pool_as_well():
    """They come there once they are computed, though nothing waits there yet."""
    names = {"engine.profile": "llama-3.1-70b_h100_tp4", "slo.ttft_ms": 3000.0, "slo.itl_ms": 22.0}
    plan = build.make_plan(load_config(None, names))
    with open_trace(STEP) as trace:
        result = build.run(plan, build.make_scenario(plan, trace), trace)
    reasons = [interval.reasons for interval in result.intervals if interval.targets]
    waiting = [{role: pool["waiting"] for role, pool in each["inputs"]["pools"].items()} for each in reasons]
    extra = [each["needs"]["decode"]["extra"] for each in reasons]
    queued = [at for at, each in enumerate(waiting) if each["prefill"] > 400 and each["decode"] == 0]
    assert queued
    assert all(extra[at] > 0 for at in queued)
    assert not any(extra[at] for at, each in enumerate(waiting) if each["prefill"] < 10)


def guess(*seen):
    """PROFILE as an estimate of which these phases have been seen."""
    known = {"tokens": [500.0, 1500.0], "kv_usage": 0.3, "within": 0.05}
    guessed = {"from": "x", "model": "", "gpu": "", "prefill": 1.0, "decode": 1.0, "within": 2.0}
    refined = {"factors": {}, "seen": dict.fromkeys(seen, known)}
    return replace(PROFILE, meta={**PROFILE.meta, "guessed": guessed, "refined": refined})


def test_a_guess_is_planned_by_once_the_engines_were_seen_and_step_by_step():
    unseen, seen = (
        targets(run(policy(guess(*phases)), [20.0] * 60, Fleet(ready=30), even=True))
        for phases in ((), ("prefill", "decode"))
    )
    assert unseen[:UNSEEN_INTERVALS] == [30] * UNSEEN_INTERVALS
    for found in (unseen, seen):
        assert found[-1] < 10
        assert all(3 * later >= 2 * earlier for earlier, later in pairwise(found))
    given = targets(run(policy(), [20.0] * 60, Fleet(ready=30), even=True))
    assert any(3 * later < 2 * earlier for earlier, later in pairwise(given))
    assert seen[-1] == given[-1]


def test_a_guess_that_was_not_seen_buys_nothing():
    """By it the load needs far more than the fleet that stands there and serves it."""
    slow = replace(guess(), prefill=scaled(PROFILE, 0.4).prefill)
    assert targets(run(policy(slow), [20.0] * 15, Fleet(ready=2), even=True)) == [2] * 15


def test_a_decision_says_what_a_guess_has_not_seen():
    short, long = (
        run(policy(guess("prefill", "decode")), [20.0] * 3, isl=isl)[-1].reasons["engines"]["guess"]
        for isl in (1000.0, 4000.0)
    )
    assert "prefill learnt within 5 % for 500 to 1,500 tokens, decode learnt within 5 % up to 30 %" in short
    assert "not seen yet" not in short
    assert long.endswith("; not seen yet: 100 % of the last prompts")
