"""Candidates, what is left out by its bound, the choice, and the whole study on a small load."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from headway.config import ConfigError, load_config
from headway.planning import Role
from headway.simulation.build import make_plan, make_scenario, run
from headway.simulation.report import Minutes
from headway.workload import TraceOptions, open_trace
from headway_studies.commands.recommend_view import sentences
from headway_studies.recommend import trials
from headway_studies.recommend.candidates import (
    Base,
    Candidate,
    EngineChoice,
    Mode,
    candidates,
    engine_choices,
    priced,
)
from headway_studies.recommend.search import Row, cheapest, chosen, evaluated, other_policy
from headway_studies.recommend.trials import Facts, Outcome, facts, fixed, followed, noise

MIXED = Role.MIXED
SMALL, LARGE = "llama-3.1-8b_h100_tp1", "qwen3-32b_h100_tp2"
LOAD = "steady:rate_rps=6,duration_s=240,input_tokens=800,output_tokens=80,input_cv=1,seed=5"
SLO = {"slo.ttft_ms": 500.0, "slo.itl_ms": 30.0}


def candidate(name="a", price=1.0, mode=Mode.MIXED):
    engine = EngineChoice(name=name, profile=SMALL, price_per_gpu_hour=price)
    return Candidate(engine=engine, mode=mode, chunk_tokens=None, base=Base())


def known(bound=0.0, least=0.0, gpus=1, problem=None):
    return Facts(
        attainable=1.0,
        bound_gpu_hours=bound,
        least_gpu_hours=least,
        gpus_per_replica={MIXED: gpus},
        guess={MIXED: 1},
        problem=problem,
    )


def outcome(gpu_hours, attainment=1.0):
    return Outcome(fleet={MIXED: 2}, attainment=attainment, gpu_hours=gpu_hours, overrides={}, report=None)


def row(name="a", fixed_hours=None, policy_hours=None, policy_attains=1.0, price=1.0, gpus=1):
    made = Row(candidate=candidate(name, price), facts=known(gpus=gpus), aim=0.99)
    made.fixed = None if fixed_hours is None else outcome(fixed_hours)
    made.followed = None if policy_hours is None else outcome(policy_hours, policy_attains)
    return made


class Script:
    """Runs that answer from a table by engine name: (bound, least), fixed and policy GPU-hours."""

    def __init__(self, **table):
        self.table = table
        self.simulated = []

    def facts(self, candidates):
        return [known(*self.table[each.engine.name][0]) for each in candidates]

    def fixed(self, candidates):
        self.simulated.append([f"fixed {each.engine.name}" for each, _ in candidates])
        return [(outcome(self.table[each.engine.name][1]), None) for each, _ in candidates]

    def followed(self, candidates):
        self.simulated.append([f"policy {each.engine.name}" for each, _, _ in candidates])
        return [outcome(self.table[each.engine.name][2]) for each, _, _ in candidates]


def test_what_cannot_be_cheapest_is_not_simulated():
    script = Script(a=((1, 1), 5.0, 4.0), b=((2, 2), 6.0, 5.0), c=((3, 4.5), 7.0, 6.0), d=((4, 4), 8.0, 7.0),
                    e=((4.9, 4.9), 9.0, 8.0), f=((5.0, 5.0), 9.0, 8.0))  # fmt: skip
    rows = evaluated([candidate(name) for name in script.table], 0.99, script)
    assert script.simulated == [
        ["fixed a", "fixed b", "fixed c", "fixed d"],
        ["fixed e"],
        ["policy a", "policy b", "policy c", "policy d"],
    ]
    assert [each.fixed is None for each in rows] == [False] * 5 + [True]
    assert chosen(rows).row is rows[0]


def test_prices_count_in_bounds_and_in_the_choice():
    script = Script(a=((3, 3), 5.0, 5.0), b=((1, 1), 8.0, 8.0))
    rows = evaluated([candidate("a", price=4.0), candidate("b", price=1.0)], 0.99, script)
    assert chosen(rows).row is rows[1]
    assert chosen(rows).cost == 8.0
    assert rows[0].followed is None


def test_a_candidate_without_a_fleet_is_not_followed():
    script = Script(a=((1, 1), 5.0, 4.0))
    script.facts = lambda candidates: [known(problem="too slow") for _ in candidates]
    rows = evaluated([candidate("a")], 0.99, script)
    assert script.simulated == []
    assert chosen(rows) is None
    assert cheapest(rows) is None
    assert rows[0].problem == "too slow"


def test_the_policy_that_misses_the_promise_is_not_chosen():
    rows = [row(fixed_hours=5.0, policy_hours=3.0, policy_attains=0.98)]
    assert chosen(rows).is_fixed
    assert other_policy(chosen(rows)) is None


def test_of_equal_costs_the_policy_is_chosen_before_a_fixed_fleet():
    rows = [row("a", fixed_hours=1.0, policy_hours=1.004), row("b", fixed_hours=1.0)]
    found = chosen(rows)
    assert found.row is rows[0]
    assert not found.is_fixed
    assert other_policy(found).outcome is rows[0].fixed


def test_of_equal_costs_what_takes_fewer_gpus_for_a_replica_and_then_the_first():
    rows = [row("a", policy_hours=4.0, gpus=4), row("b", policy_hours=4.0), row("c", policy_hours=4.0)]
    assert chosen(rows).row is rows[1]
    better = replace(rows[2].followed, attainment=1.0)
    rows[1].followed = replace(better, attainment=0.995)
    assert chosen(rows).row is rows[2]


def test_candidates_are_engines_by_modes_by_chunk_sizes():
    engines = engine_choices(Base(), [SMALL, LARGE])
    assert [each.gpu for each in engines] == ["h100_sxm", "h100_sxm"]
    made = candidates(Base(), engines, [Mode.MIXED, Mode.SPLIT], [512, 2048])
    labels = [f"{each.engine.name} {each.label}" for each in made]
    assert labels == [
        f"{name} {label}" for name in (SMALL, LARGE) for label in ("mixed 512", "mixed 2048", "split")
    ]


def test_directories_of_one_name_are_told_apart_by_their_paths(tmp_path):
    places = []
    for parent in ("one", "two"):
        (tmp_path / parent).mkdir()
        (tmp_path / parent / "tp1").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="comes twice"):
        engine_choices(Base(), [str(tmp_path / parent / "tp1") for parent in ("one", "two")])
    for parent in ("three", "four"):
        place = tmp_path / parent / SMALL
        place.mkdir(parents=True)
        for entry in load_directory().iterdir():
            (place / entry.name).symlink_to(entry)
        places.append(str(place))
    assert [each.name for each in engine_choices(Base(), places)] == places


def load_directory():
    from headway.config import resolve_profile

    return resolve_profile(SMALL).resolve()


def test_prices_go_by_name_or_gpu_type_and_are_complete():
    engines = engine_choices(Base(), [SMALL, LARGE])
    assert [each.price_per_gpu_hour for each in priced(engines, {"h100_sxm": 3.0})] == [3.0, 3.0]
    named = priced(engines, {SMALL: 2.0, "h100_sxm": 3.0})
    assert [each.price_per_gpu_hour for each in named] == [2.0, 3.0]
    with pytest.raises(ConfigError, match=f"no price of {LARGE}, GPU type h100_sxm"):
        priced(engines, {SMALL: 2.0})
    with pytest.raises(ConfigError, match="b200 is none of"):
        priced(engines, {"b200": 2.0, "h100_sxm": 1.0})


def test_the_keys_of_the_configuration_stay(tmp_path):
    path = tmp_path / "base.yaml"
    path.write_text(
        "model: mine\nengine: {chunk_tokens: 1024, max_batch_size: 64}\n"
        "pools: {mixed: {min_replicas: 2, gpus_per_replica: 3}}\n"
        "simulation: {initial: {mixed: 5}}\nplanner: {policy: threshold}\n",
        encoding="utf-8",
    )
    base = Base(file=str(path))
    mixed, split = candidates(base, engine_choices(base, [SMALL]), [Mode.MIXED, Mode.SPLIT], [512])
    config = mixed.base.config(mixed.settings({MIXED: 7}, None))
    assert (config.model, config.engine.max_batch_size, config.engine.chunk_tokens) == ("mine", 64, 512)
    assert config.pools["mixed"].model_dump(exclude_unset=True) == {"min_replicas": 2, "max_replicas": 7}
    assert config.planner.policy == "headway"
    most = dict.fromkeys(Mode.SPLIT.roles, 9)
    config = split.base.config(split.settings(most, {Role.PREFILL: 3, Role.DECODE: 4}))
    assert (config.engine.chunk_tokens, config.planner.policy) == (1024, "static")
    assert {role: pool.max_replicas for role, pool in config.pools.items()} == {"prefill": 9, "decode": 9}


@pytest.fixture(scope="module")
def small_trace():
    with open_trace(LOAD, TraceOptions(rate_scale=4.0)) as trace:
        yield trace


@pytest.mark.parametrize("mode", list(Mode))
def test_the_least_fixed_fleet_keeps_the_promise_and_one_replica_fewer_does_not(small_trace, mode):
    (only,) = candidates(Base(overrides=SLO), engine_choices(Base(), [SMALL]), [mode], [2048])
    told = facts(only, small_trace)
    assert told.problem is None
    found, problem = fixed(only, told, small_trace)
    assert problem is None
    assert found.attainment >= 0.99
    assert found.gpu_hours >= told.bound_gpu_hours
    for role, count in found.fleet.items():
        if count > 1:
            fewer = only.settings(found.fleet, {**found.fleet, role: count - 1})
            plan = make_plan(only.base.config(fewer))
            assert run(plan, make_scenario(plan, small_trace), small_trace).attainment < 0.99


def test_targets_that_idle_engines_miss_are_named_with_those_that_they_keep(small_trace):
    base = Base(overrides={"slo.ttft_ms": 20.0, "slo.itl_ms": 30.0})
    (only,) = candidates(base, engine_choices(base, [SMALL]), [Mode.MIXED], [2048])
    told = facts(only, small_trace)
    assert "TTFT of 20 ms is missed by" in told.problem
    assert "ITL" not in told.problem
    kept_ms = float(told.problem.partition("(99 % keep ")[2].partition(" ms")[0])
    kept = Base(overrides={"slo.ttft_ms": kept_ms * 1.001, "slo.itl_ms": 30.0})
    (other,) = candidates(kept, engine_choices(kept, [SMALL]), [Mode.MIXED], [2048])
    assert facts(other, small_trace).problem is None


def test_a_budget_that_is_too_small_says_what_would_be_enough(small_trace):
    base = Base(overrides={**SLO, "planner.max_gpu_budget": 1})
    (only,) = candidates(base, engine_choices(base, [SMALL]), [Mode.SPLIT], [2048])
    found, problem = fixed(only, facts(only, small_trace), small_trace)
    assert found is None
    assert problem.startswith("needs 2 GPUs, more than the 1 there are")


def test_requests_that_no_fleet_keeps_leave_less_of_the_promise_to_lose(small_trace):
    (loose,) = candidates(Base(overrides=SLO), engine_choices(Base(), [SMALL]), [Mode.MIXED], [2048])
    assert facts(loose, small_trace).loss_budget is None
    base = Base(overrides={**SLO, "slo.ttft_ms": 60.0, "slo.attainment": 0.8})
    (tight,) = candidates(base, engine_choices(base, [SMALL]), [Mode.MIXED], [2048])
    told = facts(tight, small_trace)
    assert 0.8 < told.attainable < 0.99
    assert told.loss_budget == pytest.approx(1 - 0.8 / told.attainable, rel=1e-3)
    ran = followed(tight, told, {MIXED: 1}, small_trace)
    config = load_config(None, {**tight.base.overrides, **ran.overrides})
    assert config.planner.section("headway").loss_budget == told.loss_budget
    base = base.having({"planner.headway.loss_budget": 0.1})
    (own,) = candidates(base, engine_choices(base, [SMALL]), [Mode.MIXED], [2048])
    assert facts(own, small_trace).loss_budget is None


def minutes(met, completed):
    none = [0] * len(met)
    return Minutes(requests=completed, completed=completed, met=met, shed=none, failed=none)


def test_losses_in_one_burst_are_less_certain_than_the_same_scattered():
    ended = [1000] * 60
    scattered, burst = [990] * 60, [1000] * 57 + [800] * 3
    assert noise(minutes(scattered, ended)) == pytest.approx(3 / 60_000)
    # All in one of 20 batches: t of 19 times the standard error, which is the mean itself.
    assert noise(minutes(burst, ended)) == pytest.approx(2.093 * 0.01, rel=1e-3)
    assert noise(minutes([990], [1000])) == noise(minutes([0, 0], [0, 0])) == 1.0


def test_the_noise_is_that_of_draws():
    random = np.random.default_rng(3)
    spans = [random.binomial(100, 0.98, 60) for _ in range(300)]
    covered = [abs(met.mean() / 100 - 0.98) < noise(minutes(met.tolist(), [100] * 60)) for met in spans]
    assert 0.9 < np.mean(covered) < 0.98


def attaining(monkeypatch, *shares, noise=0.01):
    """Simulations that attain these shares in turn; the loss budgets that they are asked with."""
    asked, left = [], list(shares)

    def simulated(config, trace):
        asked.append(config.planner.section("headway").loss_budget)
        return SimpleNamespace(
            replicas={"mixed": SimpleNamespace(desired=[2.0])},
            attainment=left.pop(0),
            gpu_hours=1.0,
            minutes=True,
        )

    monkeypatch.setattr(trials, "_simulated", simulated)
    monkeypatch.setattr(trials, "noise", lambda minutes: noise)
    return asked


def test_a_policy_that_misses_by_less_than_its_noise_is_tried_with_a_tighter_budget(monkeypatch):
    asked = attaining(monkeypatch, 0.9885, 0.9895, 0.9901, noise=0.002)
    found = followed(candidate(), known(), {MIXED: 1}, None)
    # 0.01 less a miss of 0.0015 and the noise, and again less 0.0005 and the noise.
    assert asked == [None, 0.0065, 0.004]
    assert found.attainment == 0.9901
    assert found.overrides[trials.BUDGET_KEY] == 0.004
    assert list(found.tries.values()) == [0.9885, 0.9895, 0.9901]


def test_tries_are_bounded_and_the_best_is_kept(monkeypatch):
    asked = attaining(monkeypatch, 0.985, 0.989, 0.988)
    found = followed(candidate(), known(), {MIXED: 1}, None)
    assert asked == [None, 0.0025, 0.000625]
    assert (found.attainment, found.overrides[trials.BUDGET_KEY]) == (0.989, 0.0025)


@pytest.mark.parametrize("attained", [0.97, 0.99])
def test_a_policy_that_misses_by_more_or_not_at_all_is_tried_once(monkeypatch, attained):
    assert attaining(monkeypatch, attained) == []
    found = followed(candidate(), known(), {MIXED: 1}, None)
    assert len(found.tries) == 1
    assert trials.BUDGET_KEY not in found.overrides


def test_a_loss_budget_of_the_configuration_is_kept(monkeypatch):
    asked = attaining(monkeypatch, 0.985)
    own = replace(candidate(), base=Base(overrides={trials.BUDGET_KEY: 0.02}))
    assert followed(own, known(), {MIXED: 1}, None).tries == {0.02: 0.985}
    assert asked == [0.02]


def test_the_proof_and_the_setting_are_said():
    (only,) = rows = [row(fixed_hours=5.0, policy_hours=3.0)]
    only.fixed = replace(only.fixed, beside=[({MIXED: 1}, 0.9813)])
    tries = {0.01: 0.9885, 0.0065: 0.9902}
    settings = {trials.BUDGET_KEY: 0.0065}
    only.followed = replace(only.followed, attainment=0.9902, noise=0.002, tries=tries, overrides=settings)
    said = sentences(SimpleNamespace(rows=rows, unit="GPU-hours"), chosen(rows))
    assert "2 replicas at most and planner.headway.loss_budget 0.0065: 99.02 % ± 0.2 %" in said["Recommended"]
    assert said["Neighbours"] == "of 2, simulated: 1 98.13 %; none that is cheaper meets the SLO"
    assert said["Tried again"].endswith("attained 98.85 % with 0.01, 99.02 % with 0.0065")
