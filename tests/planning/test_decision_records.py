"""Decision records and status documents as types: the JSON of any version comes out as it went in."""

from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from headway.planning import Role
from headway.planning.documents import StatusDocument
from headway.planning.records import DecisionReasons, DecisionRecord


def stored(**changes: Any) -> dict[str, Any]:
    latency = {"mean": 0.4, "p50": 0.35, "p95": 0.9, "p99": 1.1, "count": 50.0}
    return {
        "id": 7,
        "tick": 17,
        "due_at": 170.0,
        "created_at": 170.1,
        "interval": {"start_s": 160.0, "end_s": 170.0},
        "measured": {
            "start_s": 160.0,
            "end_s": 170.0,
            "health": {"status": "ok", "detail": ""},
            "requests": 52.0,
            "isl_tokens": None,
            "ttft_s": latency,
            "load": {"prefill": {"running": 0.5, "waiting": 1.25, "kv_usage": None}},
            "traffic": {"arrivals": 52, "completions": 50},
        },
        "forecast": None,
        "pools": {"prefill": {"desired": 2, "starting": 0, "ready": 2, "draining": 0}},
        "previous_targets": {"prefill": 2},
        "targets": {"prefill": 3},
        "reasons": {"summary": "more load", "needs": {"prefill": {"lead_s": 40.0, "replicas": 3}}},
        "notes": ["no forecast"],
        "connector": {"kind": "ray_serve", "status": "sent", "detail": {"a": [1, None]}, "at": 170.2},
        "dry_run": False,
        "replicas": [{"role": "prefill", "replica": "a", "starting_at": 171.0, "running_at": None}],
        "reached_at": None,
        **changes,
    }


def test_a_stored_record_comes_out_as_it_went_in() -> None:
    record = DecisionRecord.model_validate(stored())
    assert record.targets == {Role.PREFILL: 3}
    assert record.measured.ttft_s.p95 == 0.9
    assert record.measured.attainment is None
    assert record.document() == stored()
    assert list(record.document()) == list(stored())


@pytest.mark.parametrize("missing", ["tick", "measured", "notes", "reasons", "connector", "replicas"])
def test_a_record_of_an_older_version_has_defaults_and_is_written_again_without_them(missing: str) -> None:
    older = {key: value for key, value in stored().items() if key != missing}
    record = DecisionRecord.model_validate(older)
    assert getattr(record, missing) is not None
    assert record.document() == older


def test_what_a_newer_version_added_is_kept() -> None:
    newer = stored(colour="green", connector={"kind": "virtual", "number": 3})
    assert DecisionRecord.model_validate(newer).document() == newer


def test_what_is_no_record_is_a_value_error() -> None:
    for broken in ({}, stored(targets={"cook": 1}), stored(created_at="soon")):
        with pytest.raises(ValidationError):
            DecisionRecord.model_validate(broken)


def test_reasons_are_read_as_far_as_all_policies_have_them() -> None:
    reasons = DecisionReasons.model_validate(stored()["reasons"])
    assert (reasons.summary, reasons.needs[Role.PREFILL].lead_s) == ("more load", 40.0)
    assert (reasons.limits, reasons.forecast, reasons.corrections) == ((), None, {})


def test_a_status_document_comes_out_as_it_went_in() -> None:
    pool = {"desired": 2, "starting": None, "running": 0.5, "kv_usage": None, "max_replicas": 6}
    document = {
        "model": "llama",
        "slo": {"ttft_ms": 300.0, "itl_ms": 20.0, "attainment": 0.99, "classes": {}},
        "planner": {"state": "waiting", "reason": "starting"},
        "pools": {"decode": pool},
        "components": {"Planner": {"ok": True, "detail": ""}},
        "last_decision": None,
    }
    status = StatusDocument.model_validate(document)
    assert status.pools[Role.DECODE].running == 0.5
    assert status.document() == document
    assert list(status.document()["pools"]["decode"]) == list(pool)


def _names(kind: Any) -> set[str]:
    """The keys of a model and of all models within."""
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return {name for inner in get_args(kind) for name in _names(inner)}
    return {
        *kind.model_fields,
        *(name for field in kind.model_fields.values() for name in _names(field.annotation)),
    }


@pytest.mark.parametrize("kind", [DecisionRecord, StatusDocument])
def test_the_reference_names_every_key(kind: type[BaseModel]) -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "results.md"
    reference = page.read_text(encoding="utf-8")
    assert {name for name in _names(kind) if f"`{name}`" not in reference} == set()
