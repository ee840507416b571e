"""A generated fleet: popularity, rare models, and that its file is one that can be simulated."""

from pathlib import Path

import pytest

from headway.config import load_fleet, resolve_profile
from headway.workload import TraceError
from headway.workload.fleet import parse_fleet_spec
from headway.workload.generators import Rhythm, parse_generator
from headway_cli.fleet_runs import fleet_jobs, run_fleet
from tests.cli.cli_cases import headway


def settings(spec: str, seed: int = 0) -> dict[str, dict[str, object]]:
    return dict(parse_fleet_spec(spec, seed).settings()["deployments"])


def rate(deployment: dict[str, object]) -> float:
    load = deployment["simulation"]["load"]["trace"]  # type: ignore[index]
    shape = parse_generator(load, seed=0).shape
    assert isinstance(shape, Rhythm)
    return shape.rate_rps


def test_rates_follow_a_power_law_and_add_up() -> None:
    rates = [rate(each) for each in settings("fleet:models=20,rate_rps=40,zipf=2").values()]
    assert sum(rates) == pytest.approx(40, rel=1e-3)
    assert rates[0] / rates[9] == pytest.approx(100, rel=1e-3)


def test_rare_models_may_have_no_replica_and_more_time() -> None:
    for each in settings("fleet:models=20,rare_rps=0.5").values():
        rare = rate(each) < 0.5
        assert each["slo"] == {"ttft_ms": 5000 if rare else 500}
        assert each["pools"]["mixed"]["min_replicas"] == (0 if rare else 1)  # type: ignore[index]
        assert each["share"] == {"priority": 0 if rare else 1}


def test_draws_are_those_of_the_seed_and_the_place() -> None:
    few, many = settings("fleet:models=20,zipf=0,rate_rps=20"), settings("fleet:models=40,zipf=0,rate_rps=40")
    assert few == {name: many[name] for name in few}
    assert settings("fleet", seed=1) == settings("fleet:seed=1") != settings("fleet")


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("fleet:models=0", "models: must be above 0"),
        ("fleet:models=1001", "models: must be above 0 and at most 1000"),
        ("fleet:modells=3", "unknown key 'modells' of fleet; known: hours, models, "),
        ("fleet:hours=0", "hours: must be above 0"),
    ],
)
def test_bad_specifications_are_named(spec: str, problem: str) -> None:
    with pytest.raises(TraceError, match=f"^{spec}: {problem}"):
        parse_fleet_spec(spec, 0)


def test_the_file_is_a_fleet_that_can_be_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "fleet.yaml"
    said = headway(capsys, "generate", "fleet:models=12,hours=0.1", "--seed", "3", "--output", str(file))
    assert said.code == 0, said.err
    fleet = load_fleet(file)
    assert {resolve_profile(each.engine.profile).is_dir() for each in fleet.deployments.values()} == {True}
    assert len({each.engine.profile for each in fleet.deployments.values()}) == 4
    jobs = fleet_jobs(fleet, file)
    used = run_fleet({name: jobs[name] for name in ("m001", "m012")}, 100)
    assert [one.report.trace.duration_s for one in used.deployments] == [360.0, 360.0]


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--seed", "-1"), "seed must be at least 0"),
        (("--rate-scale", "2"), "--rate-scale: does not go with a fleet; its rate_rps says it"),
    ],
)
def test_flags_that_a_fleet_cannot_have(
    flags: tuple[str, str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = headway(capsys, "generate", "fleet:models=2", *flags, "--output", str(tmp_path / "fleet.yaml"))
    assert said.code == 2
    assert problem in said.err
