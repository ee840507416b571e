"""The page of profiles: ticks that can be read, the targets as lines, the operating point."""

import pytest

from headway.config import resolve_profile
from headway.planning import Slo
from headway.profiling.comparison import TargetLoad, recommend
from headway_cli.page.charts import Figure, Series
from headway_cli.page.profile import draw
from headway_cli.profile_view import ShownProfile
from interp import load_profile

PROFILE = load_profile(resolve_profile("llama-3.1-8b_h100_tp1"))
SHOWN = [ShownProfile(name="TP 1", profile=PROFILE)]
LOAD = TargetLoad(isl_tokens=1200, osl_tokens=200, slo=Slo(ttft_s=0.3, itl_s=0.02))


def series(figure: Figure) -> list[Series]:
    return [one for panel in figure["panels"] for one in panel["series"]]


def test_targets_and_the_operating_point_are_drawn() -> None:
    found = recommend({1: PROFILE}, LOAD)
    drawn = series(draw(SHOWN, found))
    targets = {one["name"]: one["y"] for one in drawn if one["name"].startswith("SLO")}
    assert targets == {"SLO 300 ms": [300.0, 300.0], "SLO 20 ms": [20.0, 20.0]}
    stars = [(one["x"][0], one["y"][0]) for one in drawn if one["name"] == "operating point"]
    assert stars == [
        (1200, pytest.approx(found.prefill.latency_s * 1e3)),
        (1200, pytest.approx(found.prefill.throughput_per_gpu)),
        (found.decode.kv_usage, pytest.approx(found.decode.latency_s * 1e3)),
        (found.decode.kv_usage, pytest.approx(found.decode.throughput_per_gpu)),
    ]


def test_without_a_load_there_is_no_target() -> None:
    assert {one["name"] for one in series(draw(SHOWN, None))} == {"TP 1"}
