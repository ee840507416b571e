"""One state and one sentence of a running deployment."""

from math import comb
from typing import Any

import pytest

from headway.planning.documents import StatusDocument
from headway.planning.health import chance, health
from headway.planning.record_figures import (
    WINDOWS_S,
    forecast_error,
    judged_in,
    missed_since,
    needed_replicas,
    unended_since,
)
from headway.planning.records import ClassFigures, DecisionRecord, ForecastFigures, MeasuredFigures

NOW_S = 1_000_000.0


def status(**changes: Any) -> StatusDocument:
    """A deployment that keeps its promise, changed."""
    document = {
        "model": "llama",
        "slo": {"ttft_ms": 500.0, "itl_ms": 20.0, "attainment": 0.99},
        "planner": {"state": "running", "interval_s": 30.0},
        "pools": {
            "prefill": {"ready": 1, "desired": 1, "starting": 0, "max_replicas": 1},
            "decode": {"ready": 3, "desired": 3, "starting": 0, "max_replicas": 8},
        },
        "attainment": {"last_interval": 0.996},
        "measured": {
            "health": {"status": "ok"},
            "judged": 200.0,
            "ttft_s": {"mean": 0.2, "p95": 0.3},
            "itl_s": {"mean": 0.01, "p95": 0.012},
        },
        "last_decision": {"id": 7, "created_at": NOW_S - 5, "targets": {"prefill": 1, "decode": 3}},
        "components": {"Predictor": {"ok": True}},
    }
    return StatusDocument.model_validate({**document, **changes})


def test_a_promise_that_is_kept() -> None:
    found = health(status(), NOW_S)
    assert found == (
        "keeping",
        "On target: 99.6 % of requests met their SLO, target 99 %; 1 prefill, 3 decode ready",
    )
    assert found.well


def test_a_missed_promise_names_the_latency_the_pool_and_its_limit() -> None:
    burning = status(
        attainment={"last_interval": 0.69, "missed_since": NOW_S - 240.0},
        measured={
            "health": {"status": "ok"},
            "judged": 1240.0,
            "ttft_s": {"p95": 0.812},
            "itl_s": {"p95": 0.012},
        },
        last_decision={
            "id": 7,
            "created_at": NOW_S - 5,
            "targets": {"prefill": 1, "decode": 3},
            "needed": {"prefill": 4, "decode": 3},
            "limits": ["prefill: max_replicas"],
        },
    )
    assert health(burning, NOW_S).text == (
        "Burning: 31 % of 1,240 requests in the last 30 s missed their SLO "
        "(budget 1 %; below target for 4 min): TTFT p95 812 ms, target 500; "
        "prefill needs 4, 1 ready (max_replicas 1)"
    )
    assert not health(burning, NOW_S).well


def lately(last: tuple[float, float], **windows: tuple[float, float]) -> StatusDocument:
    """A status by requests judged and missed in the last interval, and in windows."""
    judged, missed = last
    named = {name: {"judged": count, "missed": late} for name, (count, late) in windows.items()}
    attainment = {
        "last_interval": 1.0 - missed / judged,
        "missed_since": NOW_S - 30.0,
        "windows": {"all": named},
    }
    return status(attainment=attainment, measured={"health": {"status": "ok"}, "judged": judged})


def by_binomial(judged: int, missed: int, share: float) -> float:
    """P(K >= missed), from its definition."""
    return sum(
        comb(judged, count) * share**count * (1.0 - share) ** (judged - count)
        for count in range(missed, judged + 1)
    )


@pytest.mark.parametrize(
    ("judged", "missed", "share"), [(81, 2, 0.01), (10, 6, 0.1), (3, 3, 0.01), (500, 20, 0.01), (60, 60, 0.5)]
)
def test_chance_is_that_of_the_binomial_distribution(judged: int, missed: int, share: float) -> None:
    assert chance(missed, judged, share) == pytest.approx(by_binomial(judged, missed, share), rel=1e-6)
    assert chance(missed - 1, judged, share) > chance(missed, judged, share)


def test_chance_at_its_limits() -> None:
    assert (chance(0.0, 10.0, 0.01), chance(1.0, 10.0, 0.0), chance(5.0, 10.0, 1.0)) == (1.0, 0.0, 1.0)
    assert chance(1e5, 1e6, 0.01) == 0.0
    assert chance(10_300.0, 1e6, 0.01) == pytest.approx(0.00134, rel=0.03)


@pytest.mark.parametrize(
    ("last", "windows", "said"),
    [
        ((81, 2), {}, "On target except for the last 30 s: 97.53 % of requests"),
        ((2, 2), {}, "On target except"),
        ((3, 3), {}, "Burning: 100 % of 3 requests in the last 30 s missed their SLO (budget 1 %"),
        ((81, 2), {"5m": (810, 24)}, "Burning: 2.963 % of 810 requests in the last 5 min missed"),
        (
            (81, 2),
            {"5m": (810, 12), "1h": (9720, 146)},
            "Burning: 1.502 % of 9,720 requests in the last 60 min",
        ),
        # It is over: no request was late of late.
        ((81, 0), {"5m": (810, 24), "1h": (9720, 30)}, "On target: 100 % of requests"),
        ((81, 0), {"5m": (810, 8), "1h": (9720, 900)}, "On target: 100 % of requests"),
    ],
)
def test_what_chance_explains_is_no_fire(
    last: tuple[float, float], windows: dict[str, tuple[float, float]], said: str
) -> None:
    assert health(lately(last, **windows), NOW_S).text.startswith(said)


def test_requests_that_miss_at_the_promised_rate_burn_once_a_month_at_most() -> None:
    window_s, month_s = 30.0, 30 * 86400.0
    for judged in (5, 80, 500):
        burns = next(late for late in range(judged + 1) if not health(lately((judged, late)), NOW_S).well)
        assert by_binomial(judged, burns, 0.01) * month_s / window_s <= 1.0
        assert by_binomial(judged, burns - 1, 0.01) * month_s / window_s > 1.0


@pytest.mark.parametrize("target", [0.9, 0.95, 0.99, 0.999])
def test_the_fast_alert_fires_only_where_the_verdict_burns(target: float) -> None:
    share = min(14.4 * (1.0 - target), 0.5)
    assert chance(10.0, 10.0 / share, 1.0 - target) < WINDOWS_S["1h"] / (30 * 86400.0)


@pytest.mark.parametrize(
    ("attained", "judged", "lately", "state"),
    [
        (0.3, 10.0, (10.0, 7.0), "burning"),
        (0.4, 10.0, (10.0, 6.0), "keeping"),
        (0.5, 2.0, (20.0, 9.0), "burning"),
        (0.95, 100.0, (1000.0, 50.0), "keeping"),
    ],
)
def test_a_class_that_alone_misses_its_promise_burns(
    attained: float, judged: float, lately: tuple[float, float], state: str
) -> None:
    figures = {"judged": judged, "attainment": attained, "ttft_s": {"p95": 0.4}}
    found = health(
        status(
            slo={"ttft_ms": 500, "attainment": 0.9, "classes": {"interactive": {"ttft_ms": 200}, "bulk": {}}},
            attainment={
                "last_interval": 0.996,
                "windows": {"interactive": {"5m": dict(zip(("judged", "missed"), lately, strict=True))}},
            },
            measured={"health": {"status": "ok"}, "classes": {"interactive": figures, "bulk": {}}},
        ),
        NOW_S,
    )
    assert found.state == state
    if state == "burning":
        assert " requests of interactive in the last " in found.text
        assert " (budget 10 %): TTFT of interactive p95 400 ms" in found.text


def test_what_no_fleet_could_keep_is_said() -> None:
    decision = {"id": 7, "created_at": NOW_S, "targets": {"prefill": 1, "decode": 3}, "beyond_reach": 0.9996}
    burning = health(status(attainment={"last_interval": 0.0}, last_decision=decision), NOW_S)
    assert burning.text.endswith("; for 100 % the SLO is unreachable, even when idle")
    some = health(
        status(attainment={"last_interval": 0.5}, last_decision={**decision, "beyond_reach": 0.004}), NOW_S
    )
    assert "even when idle" not in some.text


def test_replicas_that_start_are_no_fault_and_a_budget_is_named_for_all_pools() -> None:
    decision = {"id": 7, "created_at": NOW_S, "targets": {"prefill": 1, "decode": 3}}
    starting = {"prefill": {"ready": 1}, "decode": {"ready": 3, "starting": 2}}
    text = health(
        status(
            attainment={"last_interval": 0.5},
            pools=starting,
            last_decision={**decision, "needed": {"decode": 5}, "limits": ["gpu_budget"]},
        ),
        NOW_S,
    ).text
    assert "decode needs 5, 3 ready, 2 starting (planner.max_gpu_budget)" in text


def test_what_cannot_be_seen_is_no_promise_kept() -> None:
    unseen = {"health": {"status": "down", "detail": "the gateway does not answer"}}
    found = health(status(measured=unseen, attainment={}, seen_at={"metrics": NOW_S - 300.0}), NOW_S)
    assert found == (
        "blind",
        "Blind: no metrics for 5 min (the gateway does not answer); replica counts stay",
    )


def test_a_part_of_the_engines_is_no_measurement() -> None:
    hung = {"status": "partial", "detail": "1 of 40 engines is not read: 10.0.0.7:8000"}
    found = health(status(measured={"health": hung}, attainment={}), NOW_S)
    assert found == (
        "blind",
        "Blind: the number of requests is unknown (1 of 40 engines is not read: 10.0.0.7:8000); "
        "replica counts stay",
    )
    known = health(status(measured={"health": hung, "requests": 80.0}), NOW_S)
    assert known.state == "keeping"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"components": {"Predictor": {"ok": False, "detail": "no answer"}}}, "Predictor: no answer"),
        ({"gcs_away_since_s": NOW_S - 30.0}, "Ray's GCS has been away for 30 s"),
        (
            {
                "silent": [
                    {"part": "Decode#x1", "since_s": NOW_S - 12.0, "requests": 3},
                    {"part": "Predictor", "since_s": NOW_S - 9.0},
                ]
            },
            "Hindered: Decode#x1: no progress on 3 requests for 12 s; Predictor: no answer for 9 s; 99.6 %",
        ),
        (
            {
                "hosts": [
                    {"address": "10.0.0.2", "node": "n", "state": "lost", "since_s": NOW_S - 60.0},
                    {"address": "10.0.0.3", "node": "m", "state": "back", "since_s": 0.0},
                ]
            },
            "Hindered: host 10.0.0.2 has been lost for 60 s; 99.6 % of",
        ),
        (
            {
                "last_decision": {
                    "id": 9,
                    "created_at": NOW_S,
                    "targets": {},
                    "missing": {"decode": {"replicas": 2, "since_s": NOW_S - 600.0}},
                }
            },
            "2 decode replicas ordered 10 min ago never became ready",
        ),
        (
            {"last_decision": {"id": 9, "created_at": NOW_S, "targets": {}, "status": "refused"}},
            "decision 9 was refused",
        ),
        (
            {
                "connector": {
                    "foreign_edits": [
                        {"role": "decode", "found": 2, "ours": 3, "seen_at": NOW_S, "by": "kubectl-edit"}
                    ]
                }
            },
            "decode was set to 2 by kubectl-edit",
        ),
    ],
)
def test_what_stands_in_the_way_is_said(changes: dict[str, Any], named: str) -> None:
    found = health(status(**changes), NOW_S)
    assert found.state == "hindered"
    assert named in found.text
    burning = health(status(**changes, attainment={"last_interval": 0.5}), NOW_S)
    assert burning.state == "burning"


def test_before_it_plans_and_without_requests() -> None:
    waiting = status(planner={"state": "waiting", "reason": "no replica is ready"})
    assert health(waiting, NOW_S) == ("waiting", "Waiting: no replica is ready")
    # A planner that is back after a crash has its last decision, and has measured nothing.
    for last in ({}, {"last_decision": None}):
        begun = status(attainment={}, measured=None, planner={"state": "running", "ticks": 0}, **last)
        assert health(begun, NOW_S) == (
            "waiting",
            "Waiting for the first interval; 1 prefill, 3 decode ready",
        )
    # Woken by a request within its first interval.
    measured = {"health": {"status": "starting", "detail": "no whole interval has been read yet"}}
    planner = {"state": "running", "ticks": 1, "interval_s": 60.0, "begun_at": NOW_S - 170.0}
    woken = status(attainment={}, measured=measured, planner=planner)
    assert health(woken, NOW_S) == ("waiting", "Waiting for the first interval; 1 prefill, 3 decode ready")
    assert health(woken, NOW_S + 60.0).state == "blind"
    seen = status(attainment={}, measured=measured, planner=planner, seen_at={"metrics": NOW_S})
    assert health(seen, NOW_S).state == "blind"
    idle = health(status(attainment={}, planner={"state": "running", "dry_run": True}), NOW_S)
    assert idle == (
        "idle",
        "Idle: no request finished in the last interval; 1 prefill, 3 decode ready; "
        "dry run, nothing is scaled",
    )
    assert idle.well
    busy = health(status(attainment={}, measured={"health": {"status": "ok"}, "requests": 12.0}), NOW_S)
    assert busy == (
        "busy",
        "Busy: 12 requests arrived, none finished in the last interval; 1 prefill, 3 decode ready",
    )


def test_work_under_way_is_not_idle_and_without_end_it_is_a_fault() -> None:
    measured = {"health": {"status": "ok"}, "requests": 0.0, "completed": 0.0, "unended": 3.0}
    held = {"attainment": {"unended_since": NOW_S - 30.0, "usual_s": 20.0}, "measured": measured}
    assert health(status(**held), NOW_S) == (
        "busy",
        "Busy: 3 requests under way, none finished in the last interval; 1 prefill, 3 decode ready",
    )
    for text, attainment in (
        ("30 s (usually 10 s)", {"usual_s": 10.0}),
        ("30 s", {}),
        # First tokens in time do not make up for requests that never end.
        ("30 s", {"last_interval": 1.0, "ttft_only": True}),
    ):
        held["attainment"] = {"unended_since": NOW_S - 30.0, **attainment}
        found = health(status(**held), NOW_S)
        assert found.text.startswith(f"Stalled: none of 3 requests under way has ended for {text}; 1 prefill")
        assert not found.well
    running = {"decode": {"ready": 1, "running": 0.4, "waiting": 0.3}}
    drained = status(attainment={}, measured={**measured, "unended": 0.0}, pools=running)
    assert health(drained, NOW_S).text.startswith("Busy: 1 request under way, none finished")


def test_since_when_nothing_ends() -> None:
    course = [
        record(10.0 * place, None).model_copy(update={"measured": MeasuredFigures(unended=unended)})
        for place, unended in enumerate([4.0, 0.0, 2.0, 3.0])
    ]
    assert unended_since(course) == 20.0
    assert unended_since(course[:2]) is None
    assert unended_since([]) is None


def test_to_wait_for_longer_than_an_engine_may_start_is_a_fault() -> None:
    planner = {"state": "waiting", "reason": "no replica is ready", "ready_within_s": 300.0}
    assert health(status(planner={**planner, "undecided_since": NOW_S - 299.0}), NOW_S).state == "waiting"
    stuck = health(status(planner={**planner, "undecided_since": NOW_S - 600.0}), NOW_S)
    assert stuck.text == ("Stuck: no decision for 10 min (engine.ready_within_s is 300): no replica is ready")
    assert not stuck.well
    # A long interval before the first decision is no fault.
    running = {**planner, "state": "running", "undecided_since": NOW_S - 600.0}
    assert health(status(planner=running), NOW_S).state == "keeping"


def test_a_planner_that_decides_nothing_any_more_keeps_no_promise_for_long() -> None:
    holding = {"state": "holding", "reason": "the policy failed", "interval_s": 30.0}
    decision = {"id": 7, "targets": {"prefill": 1, "decode": 3}}
    for age_s, state in ((60.0, "keeping"), (600.0, "hindered")):
        last = {**decision, "created_at": NOW_S - age_s}
        found = health(status(planner=holding, last_decision=last), NOW_S)
        assert found.state == state
    assert found.text.startswith("Hindered: no decision for 10 min: the policy failed; 99.6 %")


BY_TTFT = {"last_interval": 1.0, "ttft_only": True}


@pytest.mark.parametrize(
    ("attainment", "ttft_s", "itl_s", "said"),
    [
        (
            BY_TTFT,
            {"mean": 0.2, "p95": 0.3},
            {"mean": 0.01, "p95": 0.03},
            "On target: 100 % of requests met their TTFT (means: TTFT 200 of 500 ms, "
            "ITL 10 of 20 ms), target 99 %",
        ),
        (
            BY_TTFT,
            {"mean": 0.2, "p95": 0.3},
            {"mean": 0.08, "p95": 0.1},
            "Burning: latencies are above target: ITL p95 100 ms, target 20",
        ),
        (
            {"last_interval": 0.25, "ttft_only": True},
            {"mean": 0.6, "p95": 0.9},
            {"mean": 0.01, "p95": 0.012},
            "Burning: 75 % of 80 requests in the last 30 s missed their TTFT (budget 1 %): TTFT p95 900 ms",
        ),
        (
            {},
            {"mean": 0.2},
            {"mean": 0.01},
            "On target: attainment is not measured (means: TTFT 200 of 500 ms, ITL 10 of 20 ms)",
        ),
        ({}, {"mean": 5.0}, {}, "Burning: latencies are above target: TTFT mean 5,000 ms"),
    ],
)
def test_metrics_that_judge_no_requests_are_no_idle_fleet(
    attainment: dict[str, Any], ttft_s: dict[str, float], itl_s: dict[str, float], said: str
) -> None:
    measured = {"health": {"status": "ok"}, "completed": 80.0, "ttft_s": ttft_s, "itl_s": itl_s}
    found = health(status(attainment=attainment, measured=measured), NOW_S)
    assert found.text.startswith(said)
    assert found.well == said.startswith("On target")


def record(start_s: float, attainment: float | None, **reasons: Any) -> DecisionRecord:
    return DecisionRecord.model_validate(
        {
            "created_at": start_s + 10.0,
            "interval": {"start_s": start_s, "end_s": start_s + 10.0},
            "measured": {"attainment": attainment},
            "targets": {},
            "reasons": reasons,
        }
    )


def test_since_when_the_promise_is_missed() -> None:
    course = [0.999, 0.5, 1.0, 0.9, None, 0.98, None]
    records = [record(10.0 * place, each) for place, each in enumerate(course)]
    assert missed_since(records, 0.99) == 30.0
    assert missed_since(records[:3], 0.99) is None
    assert missed_since([], 0.99) is None


def test_windows_count_whole_intervals_that_end_in_them() -> None:
    def at(end_s: float, judged: float | None, attained: float | None) -> DecisionRecord:
        urgent = ClassFigures(judged=judged, attainment=attained)
        measured = MeasuredFigures(attainment=attained, judged=judged, classes={"urgent": urgent})
        return record(end_s - 10.0, None).model_copy(update={"measured": measured})

    records = [at(1000.0, 50.0, 0.0), at(4300.0, 40.0, 0.5), at(4310.0, 100.0, 0.99), at(4600.0, 10.0, 0.9)]
    records.insert(3, at(4500.0, None, None))
    for of_class in (None, "urgent"):
        found = judged_in(records, of_class)
        assert found["5m"] == pytest.approx({"judged": 110.0, "missed": 2.0})
        assert found["1h"] == pytest.approx({"judged": 150.0, "missed": 22.0})
    assert judged_in([])["1h"] == {"judged": 0.0, "missed": 0.0}


def forecasts(*course: tuple[float, float | None, float | None]) -> list[DecisionRecord]:
    """Records by begin of interval, forecast and measured requests."""
    return [
        record(start_s, None).model_copy(
            update={
                "forecast": None if expected is None else ForecastFigures(requests=expected),
                "measured": MeasuredFigures(requests=came),
            }
        )
        for start_s, expected, came in course
    ]


def test_a_forecast_is_judged_by_the_interval_after_it() -> None:
    judged = forecasts((0.0, 12.0, None), (10.0, 5.0, 10.0), (20.0, 1.0, 10.0))
    assert forecast_error(judged, 10.0) == pytest.approx((2.0 + 5.0) / 20.0)
    assert forecast_error(judged[:2], 10.0) == pytest.approx(0.2)
    # An interval of half the length got half of what was forecast for a whole one.
    assert forecast_error(judged[:2], 20.0) == pytest.approx(0.4)
    # After an interval without a record, or without a measurement or a forecast, there is nothing to judge.
    for course in ([], judged[:1], [judged[0], judged[2]], forecasts((0.0, None, 1.0), (10.0, 1.0, 1.0))):
        assert forecast_error(course, 10.0) is None
    assert forecast_error(forecasts((0.0, 3.0, 1.0), (10.0, 1.0, 0.0)), 10.0) is None


def test_needed_replicas_of_each_policy() -> None:
    by_hindsight = record(0.0, 1.0, needs={"decode": {"replicas": 5}})
    by_throughput = record(0.0, 1.0, requirement={"decode": {"replicas": 3.2}, "prefill": {"replicas": None}})
    assert needed_replicas(by_hindsight) == {"decode": 5}
    assert needed_replicas(by_throughput) == {"decode": 4}
    assert needed_replicas(record(0.0, 1.0)) == {}
