"""The page of a comparison of policies, and the document that it can be drawn from again."""

import json
from dataclasses import replace

import pytest

from headway.config import load_config
from headway.simulation.report import ReportError, SimulationReport
from headway_cli.compare_document import PolicyComparison, parse_comparison
from headway_cli.job import Job, execute
from headway_cli.page.charts import attained, attainment_axis
from headway_cli.page.compare import best_static, render

LOAD = "step:rate_rps=10,peak_rps=40,at_s=200,duration_s=500,input_tokens=800,output_tokens=60,seed=4"


def simulated(policy: str, **more: object) -> SimulationReport:
    keys = {"planner.policy": policy, "planner.adjustment_interval_s": 60.0}
    return execute(Job(trace=LOAD, config=load_config(None, keys | more)))


@pytest.fixture(scope="module")
def comparison() -> PolicyComparison:
    fleet = {"planner.static.prefill": 4, "planner.static.decode": 4}
    policies = {
        "reference": simulated("reference"),
        "static:prefill=4:decode=4": simulated("static", **fleet),
    }
    return PolicyComparison(policies=policies, price_per_gpu_hour=2.0, currency="$")


def test_the_document_gives_the_page_again(comparison: PolicyComparison) -> None:
    read = parse_comparison(json.loads(json.dumps(comparison.document())))
    assert render(read) == render(comparison)


def test_what_was_not_tried_and_what_nothing_keeps_is_said(comparison: PolicyComparison) -> None:
    reference = comparison.policies["reference"]
    alone = render(replace(comparison, policies={"reference": reference}))
    assert "--policies with static:auto finds it" in alone
    late = replace(comparison.policies["static:prefill=4:decode=4"], attainment=0.5)
    missed = replace(comparison, policies={"slow": late})
    assert "none that was tried reaches 99 %" in render(missed)
    assert "none of these; slow attains 50 %" in render(missed)


def test_the_best_fixed_fleet_is_the_cheapest_that_meets_the_target(comparison: PolicyComparison) -> None:
    fixed = comparison.policies["static:prefill=4:decode=4"]
    cheaper = replace(fixed, gpu_hours=0.5 * fixed.gpu_hours)
    missing = replace(fixed, gpu_hours=0.1 * fixed.gpu_hours, attainment=0.3)
    found = best_static(replace(comparison, fixed={"missing": missing, "cheaper": cheaper}))
    assert found is not None
    assert found[0] == "cheaper"


def test_money_stands_where_a_price_is_known(comparison: PolicyComparison) -> None:
    hours = comparison.policies["reference"].gpu_hours
    assert f"${2.0 * hours:,.2f}" in render(comparison)
    assert (
        "$" not in render(replace(comparison, price_per_gpu_hour=None)).split("<script")[0].split("<body>")[1]
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"policies": []}, "policies: has no row"),
        ({"policies": 7}, "policies: is not a list of rows"),
        ({"policies": [{}]}, "policies.0.label is missing"),
        ({"policies": [{"label": "a"}]}, "policies.0: policy is missing"),
        ({"price_per_gpu_hour": "much"}, "price_per_gpu_hour: is not a number"),
    ],
)
def test_half_a_document(comparison: PolicyComparison, change: dict[str, object], words: str) -> None:
    with pytest.raises(ReportError, match=words):
        parse_comparison({**comparison.document(), **change})


def test_columns_of_different_lengths_are_refused(comparison: PolicyComparison) -> None:
    document = comparison.document()
    document["policies"][0]["intervals"]["requests"].pop()
    with pytest.raises(ReportError, match="intervals: lists of different lengths"):
        parse_comparison(document)


def test_an_axis_of_attainment_shows_what_is_missed() -> None:
    values, words = attained([1.0, 0.99, 0.0, None])
    assert values == [pytest.approx(1e-4), pytest.approx(0.01), 1.0, None]
    assert words == ["100 %", "99 %", "0 %", "n/a"]
    axis = attainment_axis([0.99, 0.999])
    assert 0.01 < axis["low"] < 0.02
    assert axis["high"] < 1e-4
    assert attainment_axis([0.2])["low"] == 1.0
