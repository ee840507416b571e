"""A decision in words: what is promised, seen and needed, and what limits it."""

import pytest

from headway.planning.decision_text import measured_text, story, summary_text
from headway.planning.documents import LastDecision
from headway.planning.record_figures import reached_text, stood_already
from headway.planning.records import ConnectorAnswer, DecisionRecord, MeasuredFigures

NEEDS = {"needs": {"decode": {"lead_s": 60.0}}, "settings": {"loss_budget": 0.01}}


def record(attainment, **reasons):
    return DecisionRecord.model_validate(
        {
            "created_at": 30.4,
            "interval": {"start_s": 0.0, "end_s": 30.0},
            "measured": {"requests": 60, "attainment": attainment},
            "targets": {"decode": 1},
            "reasons": reasons,
        }
    )


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        ({}, ""),
        ({"attainment": 0.99}, ""),
        ({"attainment": 0.0}, "Only 0 % of requests met their SLO, target 99 %. "),
        ({"attainment": 0.9899}, "Only 98.99 % of requests met their SLO, target 99 %. "),
        ({"attainment": 0.6, "ttft_only": True}, "Only 60 % of requests met their TTFT, target 99 %. "),
        ({"health": {"status": "stale", "detail": "old"}, "attainment": 0.6}, "No metrics (old). "),
    ],
)
def test_the_line_of_a_decision_begins_with_what_is_wrong(measured, said):
    found = summary_text("Needs 1.", MeasuredFigures.model_validate(measured), 0.99)
    assert found == f"{said}Needs 1."


def test_a_story_has_what_was_seen_what_may_miss_and_what_limits():
    told = story(record(0.62, **NEEDS, limits=["decode: max_replicas"]))
    assert told["measured"][1] == "62 % of requests within their SLO"
    assert told["why"] == [
        "decode: a new replica serves within 60 s",
        "Planned so that at most 1 % of requests miss their SLO",
        "Limited by: decode: max_replicas",
    ]
    untold = story(record(None, needs=NEEDS["needs"]))
    assert len(untold["measured"]) == 1
    assert untold["why"] == ["decode: a new replica serves within 60 s"]


@pytest.mark.parametrize(
    ("need", "said"),
    [
        ({}, ""),
        (
            {"option": {"expected": 4.2, "factor": 1.3}},
            "; until then work for 4.20 replicas is expected, × 1.30 for safety",
        ),
        (
            {
                "option": {"forecast": "level 0.5", "expected": 0.01, "lost": 2.0, "classes": [0.0, 0.02]},
                "requests": 100.0,
                "intervals": 9,
                "recalled": 4,
            },
            "; until then work for 0.01 replicas is expected (level 0.5), × 1.00 for safety. That would have "
            "kept 98 % of what could be kept in the last 9 intervals, 4 of them from the warm-up trace "
            "(98 % of urgent)",
        ),
    ],
)
def test_why_a_pool_needs_its_replicas(need, said):
    budgets = {"class_budgets": {"": 0.01, "urgent": 0.1}}
    made = record(None, needs={"decode": {"lead_s": 60.0, **need}}, settings=budgets)
    assert story(made)["why"] == [f"decode: a new replica serves within 60 s{said}"]


def test_load_is_of_the_whole_pool_and_kv_usage_of_its_mean_replica():
    load = {"decode": {"running": 43.0, "waiting": 0.5, "kv_usage": 0.0229}, "prefill": {"running": 2.0}}
    told = story(record(0.99).model_copy(update={"measured": MeasuredFigures.model_validate({"load": load})}))
    assert told["measured"][1:] == [
        "decode: 43 running, 0.5 waiting; mean KV usage 2.3 %",
        "prefill: 2 running, n/a waiting",
    ]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            {"status": "sent", "detail": {"before": {"prefill": 3, "decode": 4}}},
            "sent, was prefill 3, decode 4",
        ),
        ({"status": "unchanged", "detail": {"before": {"decode": 1}}}, "unchanged"),
        ({"status": "sent", "detail": {"decision_id": 2}}, "sent, decision 2"),
        (
            {"status": "pending", "detail": {"decision_id": 1, "wish": {"decode": 2}, "free_at_s": 1e9}},
            "pending, waits behind decision 1",
        ),
        (
            {"status": "unreachable", "detail": {"error": "no answer in time"}},
            "unreachable, no answer in time",
        ),
        (
            {
                "status": "sent",
                "detail": {"object": "Deployment a/b", "replicas": {"decode": 2}, "resource_version": "7"},
            },
            "sent, Deployment a/b, decode 2, version 7",
        ),
        (
            {"status": "yielded", "detail": {"yielded": {"decode": "decode: 5, not 3 as set"}}},
            "yielded, left to others: decode: 5, not 3 as set",
        ),
        ({"status": "sent", "detail": {"of_another": [1, None, {"a": "b"}]}}, "sent, of another 1, n/a, b"),
        ({"status": "refused", "detail": "why"}, "refused, why"),
    ],
)
def test_the_answer_of_a_connector_is_told_in_words(answer, said):
    made = record(0.99).model_copy(update={"connector": ConnectorAnswer(kind="k", **answer)})
    assert story(made)["connector"] == [f"k: {said}"]


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        ({"health": {"status": "down", "detail": "no answer of http://m"}}, "no data: no answer of http://m"),
        ({"health": {"status": "stale"}}, "no data: stale"),
        ({}, "no data: reason unknown"),
        ({"requests": 0, "health": {"status": "ok"}}, "0 requests (0/s); data ok"),
        (
            {"requests": 20, "repeats": 30, "isl_tokens": 9, "health": {"status": "ok"}},
            "20 requests (2/s), 30 repeats, ISL 9; data ok",
        ),
        (
            {"ttft_s": {"mean": 0.5}, "osl_tokens": 30, "health": {"status": "partial", "detail": "half"}},
            "n/a requests, OSL 30; TTFT mean 500 ms; data partial: half",
        ),
    ],
)
def test_what_was_not_measured_is_left_out(measured, said):
    assert measured_text(MeasuredFigures.model_validate(measured), 10.0) == said


STANDS = {"pools": {"decode": {"ready": 1, "starting": 0}}, "previous_targets": {"decode": 1}}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"reached_at": 36.7}, ["reached after 6.3 s"]),
        ({}, ["not reached yet"]),
        ({**STANDS, "reached_at": 30.4}, ["no change needed"]),
        ({**STANDS, "pools": {"decode": {"ready": 0, "starting": 1}}}, ["not reached yet"]),
        ({**STANDS, "connector": {"status": "pending"}, "reached_at": 30.4}, ["not reached yet"]),
        ({**STANDS, "connector": {"status": "dry_run"}}, None),
    ],
)
def test_when_a_decision_was_reached(changed, said):
    made = DecisionRecord.model_validate({**record(0.99).document(), **changed})
    assert story(made).get("reached") == said
    last = {"status": made.connector.status, "already": stood_already(made)}
    shown = LastDecision(id=1, created_at=30.4, targets={}, reached_at=made.reached_at, **last)
    assert reached_text(shown) == (said or [""])[0]
