"""Which tests a change asks for first, and what a machine that lacks something is told."""

from pathlib import Path

import pytest

from tests import stages
from tests.nearest import by_nearness, ended, fitting, modules
from tests.patience import with_longer_limits


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ("headway_cli/simulate.py", "tests/cli/test_simulate_command.py"),
        ("headway/simulation/batch.py", "tests/simulation/test_engine.py"),
        ("headway/routing/decide/slo_scorer.py", "tests/routing/test_router.py"),
        ("docs/routing.md", "tests/test_docs.py"),
        ("actors/planning/tick.py", "tests/actors/test_planner_loop.py"),
        ("tests/interp/test_fit.py", "tests/interp/test_fit.py"),
        ("headway_studies/recommend/search.py", "tests/studies/test_recommend.py"),
    ],
)
def test_a_change_asks_for_the_tests_of_its_part_first(changed: str, wanted: str) -> None:
    ordered = by_nearness([changed], {})
    assert sorted(ordered) == modules()
    assert ordered.index(wanted) < len(ordered) / 5


def test_of_those_that_are_as_near_the_cheapest_come_first_and_what_does_not_fit_is_passed_over() -> None:
    ordered = by_nearness(["tests/interp/test_fit.py"], {})
    assert ordered[0] == "tests/interp/test_fit.py"
    costs = dict.fromkeys(ordered, 1.0) | {ordered[1]: 10.0}
    assert fitting(ordered, costs, 3.0) == [ordered[0], ordered[2], ordered[3]]


def test_any_modules_can_run_together() -> None:
    """pytest imports what is in no package by its bare name."""
    bare = [
        path.name
        for path in Path(stages.ROOT, "tests").rglob("test_*.py")
        if not path.with_name("__init__.py").exists()
    ]
    assert len(bare) == len(set(bare))


def test_what_is_missing_is_named_once_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = stages.Need(lambda: False, "pages in a browser", "apt-get install chromium")
    there = stages.Need(lambda: True, "a real Prometheus", "apt-get install prometheus")
    table = {
        "core": stages.Stage(arguments=(), parts=(absent, there)),
        "one": stages.Stage(arguments=(), need=absent),
    }
    monkeypatch.setattr(stages, "STAGES", table)
    (line,) = stages.left_out(["core", "one"])
    assert line.split("  ")[1] == "pages in a browser"
    assert line.endswith("apt-get install chromium")


def test_a_stage_without_what_it_needs_is_left_out_but_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    absent = stages.Need(lambda: False, "x", "y")
    monkeypatch.setattr(stages, "STAGES", {"one": stages.Stage(arguments=("--version",), need=absent)})
    assert stages.run("one", ()) == ("left out", 0.0)
    monkeypatch.setenv("CI", "true")
    assert stages.run("one", ())[0] == "passed"


def test_of_stages_at_once_one_prints_as_it_goes_and_the_other_at_its_end(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    table = {
        "one": stages.Stage(arguments=("--version",)),
        "other": stages.Stage(arguments=("--no-such-option",)),
    }
    monkeypatch.setattr(stages, "STAGES", table)
    ended = stages.run_at_once(["one", "other"], ())
    assert ended["one"][0] == "passed"
    assert ended["other"][0].startswith("FAILED")
    shown = capfd.readouterr().out
    assert shown.index("=== one") < shown.index("=== other") < shown.index("--no-such-option")


def test_a_test_that_hangs_is_ended_and_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "test_forever.py"
    path.write_text("def test_hangs():\n    while True: pass\n", encoding="utf-8")
    command = [*stages.PYTEST, "-n", "1", "--max-worker-restart=0", "-p", "no:cacheprovider", str(path)]

    def scenario(limit_s: float) -> None:
        assert ended(command, limit_s) == 1
        assert "crashed while running" in capfd.readouterr().out

    with_longer_limits(scenario, 5.0, 60.0)
    # Not a worker has started yet.
    assert ended(command, 0.0)
