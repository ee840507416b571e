"""Several GPU types: how their profiles are read, and that each is routed to by its own."""

import json
from collections import Counter
from pathlib import Path

import pytest

from headway.config import ConfigError, Role, load_config, resolve_profile
from headway.engine import EngineRules
from headway.routing import ReplicaState, ReplicaUpdate, RequestSlo, Router, ShedReason
from headway.routing.fleet.gpu_profiles import named_profiles
from headway.simulation.build import make_plan, make_scenario, run
from headway.workload import open_trace
from interp import Profile, load_profile
from tests.routing.routers import SPLIT, aibrix_content, bearing, finish, placed, request, router, surfaces

OTHER = "qwen3-32b_h100_tp2"
LOAD = "steady:rate_rps=5,duration_s=10,seed=1"


def join(made: Router, name: str, gpu_type: str = "", role: Role = Role.MIXED) -> None:
    made.replica_changed(0.0, ReplicaUpdate(replica=name, role=role, gpu_type=gpu_type))


def fill(made: Router, requests: int = 40) -> Counter[str]:
    """Submit so many; how many each replica has now."""
    outcomes = [made.submit(0.0, request(f"r{number}")) for number in range(requests)]
    return Counter(placement.decode_replica for outcome in outcomes for placement in outcome.placements)


class TestReading:
    def test_directories_shipped_names_and_aibrix_files(self, tmp_path: Path) -> None:
        file = tmp_path / "l20"
        file.write_text(json.dumps(aibrix_content(3.0)), encoding="utf-8")
        named = {"H100": str(resolve_profile(OTHER)), "H200": OTHER, "L20": str(file)}
        found = named_profiles(load_config(None, {"routing.gpu_profiles": named, "engine.time_scale": 0.5}))
        slower = 2.0 * load_profile(resolve_profile(OTHER)).prefill.ttft_s(1000)
        for gpu_type in ("H100", "H200"):
            profile = found[gpu_type]
            assert isinstance(profile, Profile)
            assert profile.prefill.ttft_s(1000) == pytest.approx(slower)
        assert found["L20"] == bearing(3.0)

    @pytest.mark.parametrize(
        ("name", "text", "fault"),
        [
            ("nowhere", None, "'nowhere' is neither a directory nor a shipped profile"),
            ("l20.json", None, "l20.json: No such file"),
            ("l20.json", "{", "l20.json: not JSON"),
            ("l20.json", "{}", "l20.json: indexes: must be two lists"),
            ("", None, "'' is neither"),
            (".", None, "selected_prefill_interpolation"),
        ],
    )
    def test_a_fault_is_one_line_that_begins_with_the_key(
        self, name: str, text: str | None, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        if text is not None:
            Path(name).write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError) as caught:
            named_profiles(load_config(None, {"routing.gpu_profiles": {"L20": name}}))
        assert str(caught.value).startswith("routing.gpu_profiles.L20: ")
        assert fault in str(caught.value)
        assert "\n" not in str(caught.value)


class TestPulling:
    @pytest.mark.parametrize("profile", ["pull", "pull_bin_pack"])
    def test_each_type_is_filled_to_its_own_capacity(self, profile: str) -> None:
        made = router(profile, count=0, profiles={"": surfaces(), "L20": bearing(3.0), "A10": bearing(2.0)})
        for name in ("L20", "A10"):
            join(made, name.lower(), name)
        join(made, "other l20", "L20")
        assert fill(made) == {"l20": 3, "other l20": 3, "a10": 2}
        assert made.queued == 32
        assert made.gpu_types == {"L20": 2, "A10": 1}

    def test_surfaces_and_aibrix_side_by_side(self) -> None:
        alone = router("pull", count=1)
        by_surfaces = fill(alone, 400)["mixed-0"]
        made = router("pull", count=1, profiles={"": surfaces(), "L20": bearing(3.0)})
        join(made, "l20", "L20")
        join(made, "strange", "B200")
        filled = fill(made, 800)
        assert filled == {"mixed-0": by_surfaces, "strange": by_surfaces, "l20": 3}

    def test_a_type_that_is_told_later_counts_from_then_on(self) -> None:
        made = router("pull", count=0, profiles={"": surfaces(), "L20": bearing(3.0)})
        join(made, "late")
        join(made, "late", "L20")
        assert fill(made) == {"late": 3}
        drains = ReplicaUpdate(replica="late", role=Role.MIXED, state=ReplicaState.DRAINING)
        made.replica_changed(1.0, drains)
        assert made.gpu_types == {"L20": 1}

    def test_what_the_profile_serves_at_no_rate_is_shed(self) -> None:
        made = router("pull", count=0, profiles={"": surfaces(), "L20": bearing(0.0)})
        join(made, "l20", "L20")
        (shed,) = made.submit(0.0, request()).sheds
        assert shed.reason is ShedReason.NO_CAPACITY

    def test_halves_of_an_engine_take_a_batch(self) -> None:
        rules = EngineRules(max_batch_size=4)
        profiles = {"": surfaces(), "L20": bearing(3.0)}
        made = router("pull", SPLIT, count=0, profiles=profiles, rules=rules)
        join(made, "p", "L20", Role.PREFILL)
        join(made, "d", "L20", Role.DECODE)
        assert fill(made) == {"d": 4}


class TestPredicting:
    SLO = RequestSlo(ttft_s=2.0, tpot_s=0.1)

    def test_without_surfaces_the_fallback_places_and_is_counted(self) -> None:
        made = router("slo", count=0, profiles={"": surfaces(), "L20": bearing(3.0)})
        join(made, "l20", "L20")
        placement = placed(made.submit(0.0, request(slo=self.SLO)))
        assert placement.profile == "default"
        assert placement.predicted_ttft_s is None
        assert made.metrics()["fallbacks"] == {("no_prediction",): 1}
        finish(made, "r")
        assert not made.take_samples()

    def test_replicas_without_surfaces_are_passed_by_where_others_have_them(self) -> None:
        made = router("slo", count=1, profiles={"": surfaces(), "L20": bearing(3.0)})
        join(made, "l20", "L20")
        for number in range(5):
            outcome = made.submit(0.0, request(f"r{number}", slo=self.SLO, critical=True))
            assert placed(outcome).decode_replica == "mixed-0"
        assert not made.metrics()["fallbacks"]

    def test_each_type_is_judged_by_its_own_surfaces(self) -> None:
        other = load_profile(resolve_profile(OTHER))
        made = router("slo", count=0, profiles={"": surfaces(), "slow": other})
        join(made, "slow", "slow")
        slow_s = placed(made.submit(0.0, request("r", slo=self.SLO))).predicted_ttft_s
        made = router("slo", count=1)
        fast_s = placed(made.submit(0.0, request("r", slo=self.SLO))).predicted_ttft_s
        assert slow_s is not None
        assert fast_s is not None
        assert slow_s > fast_s

    def test_a_type_that_is_told_later_bounds_what_can_be_hoped_for(self) -> None:
        """Of an SLO that the default profile could keep, and the replica's own cannot, nothing is held."""
        made = router("slo", count=0, profiles={"slow": load_profile(resolve_profile(OTHER)), "": surfaces()})
        join(made, "late")
        fast_s = placed(made.submit(0.0, request("r", slo=self.SLO))).predicted_ttft_s
        finish(made, "r")
        assert fast_s is not None
        join(made, "late", "slow")
        tight = RequestSlo(ttft_s=1.5 * fast_s, tpot_s=0.1)
        (shed,) = made.submit(9.0, request("s", arrival_s=9.0, slo=tight)).sheds
        assert shed.reason is ShedReason.NO_HEADROOM
        assert made.queued == 0

    @pytest.mark.parametrize("mode", ["always", "heuristic", "cost"])
    def test_offload_places_where_nothing_is_predicted(self, mode: str) -> None:
        made = router(
            "default", count=0, profiles={"": surfaces(), "L20": bearing(3.0)}, offload={"mode": mode}
        )
        for name in "ab":
            join(made, name, "L20")
        for number in range(4):
            placed(made.submit(0.0, request(f"r{number}", input_tokens=20_000)))


@pytest.mark.parametrize(("gpu_type", "shed"), [("L20", True), ("A10", False), (None, False)])
def test_simulated_replicas_are_of_the_engines_type(gpu_type: str | None, shed: bool, tmp_path: Path) -> None:
    file = tmp_path / "l20.json"
    file.write_text(json.dumps(aibrix_content(0.0)), encoding="utf-8")
    settings = {
        "pools": {"mixed": {}},
        "planner.policy": "threshold",
        "engine.gpu_type": gpu_type,
        "routing": {"profile": "pull", "gpu_profiles": {"L20": str(file)}},
    }
    plan = make_plan(load_config(None, settings))
    with open_trace(LOAD) as trace:
        summary = run(plan, make_scenario(plan, trace), trace).report().document()
    assert summary["shed"] == (summary["requests"] if shed else 0)
