"""What operators scrape of the control plane: values, labels, time limits, promtool, and the reference."""

import asyncio
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headway.config import HeadwayConfig
from headway.planning.record_figures import REASONS, reason_codes
from headway.planning.records import ANSWERS, DecisionRecord
from serve_apps.access import make_access
from serve_apps.control_host import ControlApp
from serve_apps.control_metrics import FORGET_S, RETRY_S, ControlMetrics, StatusFeed
from serve_apps.gateway.app import make_app
from serve_apps.gateway.backend import Readiness
from serve_apps.routed.metrics import RoutingCounts, RoutingMetrics
from serve_apps.tracing.spans import SpanCounts
from tests.cli.control_server import AT, decision, status
from tests.engines.virtual_loop import run
from tests.gateway.doubles import LOADS, ScriptedBackend, chunks
from tests.patience import PATIENCE_S

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
NOW_S = AT + 12.0


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve_apps.control_metrics.WAIT_S", PATIENCE_S)


def saving(value: float) -> dict[str, float]:
    return {"value": value, "low": value / 2, "high": value * 2}


def document(**changes: Any) -> dict[str, Any]:
    """A status document with everything in it."""
    whole = status()
    whole["slo"]["classes"] = {
        "chat": {"ttft_ms": 200.0, "tpot_ms": 20.0, "attainment": 0.9, "critical": False},
        "batch": {"ttft_ms": 60_000.0, "tpot_ms": None, "attainment": None, "critical": False},
    }
    whole["planner"] |= {
        "max_gpu_budget": 16, "tick_s": 0.25, "decided": 8, "deciding_s": 2.0,
        "decisions": {"prefill": {"unchanged": 8}, "decode": {"more_load": 3, "unchanged": 5}},
    }  # fmt: skip
    whole["fleet"] = {"gpus": 28, "wanted": 12, "holds": 9, "granted": 8, "words": "holds 8 of 12"}
    missing = {"replicas": 2, "revoked": 0, "since_s": AT, "ready": 3, "lost_share": 0.125}
    whole["last_decision"] |= {
        "missing": {"decode": missing},
        "forecast": {"requests": 61.0, "isl_tokens": 1000.0, "osl_tokens": 80.0},
        "expected_replicas": {"prefill": 1.5, "decode": 3.25},
        "reached_at": None,
        "status": "refused",
        "forecast_error": 0.25,
    }
    edit = {"role": "decode", "found": 9, "ours": 4, "seen_at": AT}
    rivals = ["HorizontalPodAutoscaler decode"]
    whole["connector"] = {"kind": "kubernetes", "failures": 4, "foreign_edits": [edit], "rivals": rivals}
    whole["verdict"] = {"state": "hindered", "text": "Hindered: decision 7 was refused", "well": False}
    whole["seen_at"] = {"metrics": AT + 10, "replicas": AT + 11, "profile": AT + 2, "forecast": AT + 10}
    fleets = {"stood": {"attainment": saving(0.9)}, "planned": {"attainment": saving(0.99)}}
    window = {**fleets, "saved_gpu_hours": saving(2.0), "saved_share": saving(0.2), "saved_cost": saving(5.0)}
    acted = {"hour": None, "day": None, "start": {**window, "saved_share": {"value": 0.5}}}
    whole["advice"] = {"hour": window, "day": None, "start": window, "acted": acted}
    return {**whole, **changes}


def feed(*answers: Any, clock: Any = None) -> StatusFeed:
    left = list(answers)

    async def ask() -> Mapping[str, Any]:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            await asyncio.Event().wait()
        return dict(answer)

    return StatusFeed(ask, clock) if clock else StatusFeed(ask)


def shown(metrics: ControlMetrics) -> dict[tuple[str, tuple[str, ...]], float]:
    """Samples by name and label values other than the model."""
    registry = CollectorRegistry()
    registry.register(metrics)
    return {
        (
            sample.name,
            tuple(value for key, value in sorted(sample.labels.items()) if key != "model"),
        ): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def scraped(source: dict[str, Any]) -> dict[tuple[str, tuple[str, ...]], float]:
    asked = feed(source)
    asyncio.run(asked.refresh())
    metrics = ControlMetrics("m", asked, lambda: {"chat": (95.0, 5.0), "gone": (1.0, 0.0)}, lambda: NOW_S)
    return shown(metrics)


@pytest.mark.parametrize(
    ("last", "pending"),
    [
        ({"status": "sent"}, 1),
        ({"status": "sent", "reached_at": 5.0}, 0),
        ({"status": "dry_run"}, 0),
        ({"status": "unchanged", "already": True}, 0),
    ],
)
def test_what_is_advice_or_was_so_already_is_not_pending(last: dict[str, Any], pending: int):
    seen = scraped(document() | {"last_decision": {"id": 7, "created_at": 0.0, "targets": {}, **last}})
    assert seen["headway_decision_pending", ()] == pending


def test_the_figures_are_those_of_the_status():
    seen = scraped(document())
    assert seen["headway_control_plane_up", ()] == 1
    assert seen["headway_target_replicas", ("decode",)] == 4
    assert seen["headway_replicas", ("decode", "ready")] == 3
    assert seen["headway_replicas", ("decode", "starting")] == 1
    assert (seen["headway_min_replicas", ("decode",)], seen["headway_max_replicas", ("decode",)]) == (1, 6)
    assert (seen["headway_gpus_in_use", ("decode",)], seen["headway_gpu_budget", ()]) == (4, 16)
    assert seen["headway_capacity_missing_replicas", ("decode",)] == 2
    assert seen["headway_capacity_missing_replicas", ("prefill",)] == 0
    assert seen["headway_capacity_missing_lost_ratio", ("decode",)] == 0.125
    assert seen["headway_decisions_total", ("more_load", "decode")] == 3
    assert seen["headway_planner_tick_seconds_sum", ()] == 2.0
    assert seen["headway_planner_tick_seconds_count", ()] == 8
    assert seen["headway_connector_failures_total", ("kubernetes",)] == 4
    assert seen["headway_planner_state", ("running",)] == 1
    assert seen["headway_planner_state", ("holding",)] == 0
    assert seen["headway_decision_pending", ()] == 1
    assert (seen["headway_verdict", ("hindered",)], seen["headway_verdict", ("keeping",)]) == (1, 0)
    answers = {name: seen["headway_decision_status", (name,)] for name in ANSWERS}
    assert [name for name, value in answers.items() if value] == ["refused"]


def test_counts_that_others_set_and_other_controllers_of_them():
    seen = scraped(document())
    assert (seen["headway_foreign_edits", ("decode",)], seen["headway_foreign_edits", ("prefill",)]) == (1, 0)
    assert seen["headway_rival_controllers", ()] == 1
    alone = scraped(document(connector={"kind": "kubernetes"}))
    assert (alone["headway_foreign_edits", ("decode",)], alone["headway_rival_controllers", ()]) == (0, 0)


def test_forecast_and_measured_have_one_unit():
    seen = scraped(document())
    assert seen["headway_forecast_requests_per_second", ()] == pytest.approx(6.1)
    assert seen["headway_measured_requests_per_second", ()] == pytest.approx(5.2)
    assert seen["headway_forecast_error_ratio", ()] == 0.25
    assert seen["headway_forecast_length_tokens", ("isl",)] == 1000
    assert seen["headway_measured_length_tokens", ("osl",)] == pytest.approx(80.1)
    assert seen["headway_expected_load_replicas", ("decode",)] == 3.25


def test_attainment_and_burn_by_class():
    seen = scraped(document())
    assert seen["headway_slo_target_seconds", ("all", "ttft")] == 3.0
    assert seen["headway_slo_target_seconds", ("chat", "tpot")] == pytest.approx(0.02)
    assert ("headway_slo_target_seconds", ("batch", "tpot")) not in seen
    aims = {name: seen["headway_slo_attainment_target_ratio", (name,)] for name in ("all", "chat", "batch")}
    assert aims == {"all": 0.95, "chat": 0.9, "batch": 0.95}
    assert seen["headway_slo_attainment_ratio", ("chat", "total")] == 0.95
    assert seen["headway_slo_error_budget_burn_ratio", ("chat", "total")] == pytest.approx(0.5)
    assert seen["headway_slo_error_budget_burn_ratio", ("all", "interval")] == pytest.approx(0.8)
    assert ("headway_slo_attainment_ratio", ("gone", "total")) not in seen


def test_ages_of_inputs_and_savings():
    seen = scraped(document())
    ages = {labels[0]: value for (name, labels), value in seen.items() if name == "headway_input_age_seconds"}
    assert ages == {"metrics": 2.0, "replicas": 1.0, "profile": 10.0, "forecast": 2.0, "decision": 2.0}
    assert seen["headway_advice_saved_gpu_seconds", ("value", "hour")] == 7200
    assert seen["headway_advice_saved_ratio", ("low", "start")] == pytest.approx(0.1)
    assert seen["headway_advice_saved_cost", ("high", "hour")] == 10.0
    assert seen["headway_advice_attainment_ratio", ("planned", "hour")] == 0.99
    assert seen["headway_acting_saved_ratio", ("value", "start")] == 0.5
    assert seen["headway_acting_saved_cost", ("value", "start")] == 5.0
    assert ("headway_acting_saved_ratio", ("low", "start")) not in seen
    assert not [labels for (_, labels) in seen if "day" in labels]


def test_what_is_not_known_has_no_sample():
    bare = {"model": "m", "planner": {"state": "waiting", "reason": "x"}, "pools": {"mixed": {}}}
    seen = scraped(bare)
    assert seen["headway_planner_state", ("waiting",)] == 1
    assert not {name for name, _ in seen} & {
        "headway_replicas", "headway_gpus_in_use", "headway_gpu_budget", "headway_target_replicas",
        "headway_slo_target_seconds", "headway_advice_saved_ratio",
    }  # fmt: skip


def test_a_planner_that_hangs_holds_no_scrape_up():
    async def scenario() -> tuple[float, dict[tuple[str, tuple[str, ...]], float]]:
        loop = asyncio.get_running_loop()
        hanging = feed(None, clock=loop.time)
        await hanging.refresh()
        await hanging.refresh()
        return loop.time(), shown(ControlMetrics("m", hanging))

    took_s, seen = run(scenario())
    assert took_s == pytest.approx(2 * PATIENCE_S)
    assert seen == {("headway_control_plane_up", ()): 0.0}


def test_a_planner_that_is_gone_is_shown_as_old_and_then_not_at_all():
    now = [100.0]
    asked = feed(document(), RuntimeError("gone"), clock=lambda: now[0])
    metrics = ControlMetrics("m", asked)
    asyncio.run(asked.refresh())
    now[0] += RETRY_S
    asyncio.run(asked.refresh())
    seen = shown(metrics)
    assert seen["headway_status_age_seconds", ()] == RETRY_S
    assert seen["headway_target_replicas", ("decode",)] == 4
    now[0] += FORGET_S
    seen = shown(metrics)
    assert seen == {
        ("headway_control_plane_up", ()): 0.0,
        ("headway_status_age_seconds", ()): RETRY_S + FORGET_S,
    }


def test_many_scrapes_ask_once():
    asked: list[int] = []

    async def ask() -> Mapping[str, Any]:
        asked.append(1)
        return document()

    async def scenario() -> None:
        one = StatusFeed(ask)
        await asyncio.gather(*(one.refresh() for _ in range(20)))
        await one.refresh()

    asyncio.run(scenario())
    assert asked == [1]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, "unchanged"),
        ({"previous_targets": {"decode": 3}}, "more_load"),
        ({"previous_targets": {"decode": 3}, "reasons": {"needs": {"decode": {"extra": 1}}}}, "queue"),
        ({"previous_targets": {"decode": 5}}, "less_load"),
        ({"reasons": {"limits": ["budget"]}}, "limited"),
        ({"reasons": {"holds": {"decode": {"target": 4}}, "needs": {"decode": {"replicas": 3}}}}, "held"),
        ({"measured": {"health": {"status": "stale", "detail": "old"}}}, "no_data"),
    ],
)
def test_a_decision_counts_under_one_reason_for_each_pool(changes, code):
    same = {"targets": {"decode": 4}, "previous_targets": {"decode": 4}, "reasons": {}}
    codes = reason_codes(DecisionRecord.model_validate(decision(**{**same, **changes})))
    assert codes == {"decode": code}
    assert code in REASONS


class Plane:
    """A control plane with a status and nothing else."""

    async def status(self) -> Mapping[str, Any]:
        return document()


def gateway_exposition() -> str:
    """A live gateway's whole /metrics, over ASGI, after a request, with routing, traces and control plane."""
    config = HeadwayConfig.model_validate({"model": "m", "slo": {"classes": {"chat": {"ttft_ms": 200}}}})
    backend = ScriptedBackend(chunks("a", "b"), loads=LOADS)
    counts = RoutingCounts()
    counts.sheds["no_headroom"] += 1

    async def asked() -> str:
        app = make_app(config, backend, plane=Plane())
        app.state.registry.register(RoutingMetrics("m", lambda: counts))
        app.state.registry.register(SpanCounts("m", {"sent": 3, "failed": 0, "dropped": 0}))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as http:
            body = {"model": "m", "prompt": "x"}
            answer = await http.post("/v1/completions", json=body, headers={"x-headway-slo-class": "chat"})
            assert answer.status_code == 200, answer.text
            return (await http.get("/metrics")).text

    return asyncio.run(asked())


def control_exposition() -> str:
    """The /metrics of a control plane alone, over ASGI."""
    config = HeadwayConfig.model_validate({"model": "m"})

    async def ready() -> Readiness:
        return Readiness(ok=True)

    async def asked() -> str:
        app = ControlApp([], make_access(config.gateway, {}), ready, ControlMetrics("m", feed(document())))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://control") as http:
            return (await http.get("/metrics")).text

    return asyncio.run(asked())


@pytest.mark.parametrize("exposition", [gateway_exposition, control_exposition])
def test_promtool_has_nothing_to_say(exposition):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool (Debian: prometheus) is not installed")
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=exposition(), capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_a_scrape_is_not_mostly_buckets():
    lines = [line for line in gateway_exposition().splitlines() if not line.startswith("#")]
    buckets = [line for line in lines if "_bucket{" in line]
    assert len(buckets) < 170, f"{len(buckets)} of {len(lines)} lines are buckets"


def documented() -> dict[str, tuple[str, frozenset[str]]]:
    """Type and labels by name, as the tables of docs/reference/metrics.md have them."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \| \S.* \|$", DOCS.read_text(encoding="utf-8"), re.M)
    return {name: (kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def test_the_page_has_every_metric_with_its_type_and_labels():
    families = [*text_string_to_metric_families(gateway_exposition())]
    found = {}
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {key for sample in family.samples for key in sample.labels} - {"le", "quantile"}
        found[name] = (family.type, labels)
    stated = documented()
    assert set(found) == set(stated)
    wrong = {
        name: (found[name], stated[name])
        for name in found
        if found[name][0] != stated[name][0] or (found[name][1] and found[name][1] != stated[name][1])
    }
    assert not wrong


def test_the_example_of_keda_asks_for_metrics_that_there_are():
    text = (Path(__file__).parents[2] / "examples" / "kubernetes" / "keda.yaml").read_text(encoding="utf-8")
    scaled, autoscaler = yaml.safe_load_all(text)
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    external = autoscaler["spec"]["metrics"][0]["external"]["metric"]
    named = {*re.findall(r"headway_\w+", query), external["name"]}
    assert named == {"headway_target_replicas"}
    assert named <= set(documented())
    assert set(external["selector"]["matchLabels"]) == set(documented()[external["name"]][1])
