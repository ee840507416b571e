"""Prometheus' view of the control plane, made of the planner's status document. All series have the label
`model`; docs/reference/metrics.md has every one of them.

    feed = StatusFeed(plane.status)
    registry.register(ControlMetrics(model, feed))
    await feed.refresh()                # before a scrape; returns in time, whatever the planner does

A scrape waits at most `WAIT_S` for the planner, then shows its last status, with its age
(`headway_status_age_seconds`); after `FORGET_S` only that age and `headway_control_plane_up`, so that an
autoscaler on these figures sees them end instead of standing still. One question at a time is in flight, and
none while the last answer is younger than `FRESH_S`.

An unknown number has no sample. The windows of attainment are `interval`, the last
one, and `total`. Burn is the share of the error budget used: 1 is all of it.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

from headway.planning.health import State
from headway.planning.records import ANSWERS, DRY_RUN

logger = logging.getLogger("ray.serve")

FRESH_S = 2.0
WAIT_S = 0.5
RETRY_S = 5.0
FORGET_S = 60.0
ALL = "all"
"""The class of all requests together."""
INTERVAL, TOTAL = "interval", "total"
STATES = ("desired", "starting", "ready", "draining", "asleep")
PLANNER_STATES = ("waiting", "running", "holding", "stopped")
VERDICTS = get_args(State)
MS = 1e-3
BOUNDS = ("low", "value", "high")
SAVED = (
    ("saved_gpu_seconds", "saved_gpu_hours", 3600.0, "seconds of GPUs"),
    ("saved_ratio", "saved_share", 1.0, "share of the real fleet's GPUs"),
    ("saved_cost", "saved_cost", 1.0, "in planner.advice.currency"),
)
"""End of the name, the window's key, factor and unit of each figure of an advice."""

Document = Mapping[str, Any]
Judged = Callable[[], Mapping[str, tuple[float, float]]]
"""By class, the requests that met and that missed their SLO so far."""
Labels = tuple[str, ...]
Samples = Iterator[tuple[Labels, float | None]]


class StatusFeed:
    """The newest status document, and when it came (on `clock`)."""

    def __init__(
        self, ask: Callable[[], Awaitable[Document]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask, self._clock = ask, clock
        self._asking: asyncio.Task[None] | None = None
        self._failed_s = float("-inf")
        self.document: Document | None = None
        self._came_s = float("-inf")

    @property
    def age_s(self) -> float:
        """Seconds since the document came; infinite before the first."""
        return self._clock() - self._came_s

    async def refresh(self) -> None:
        """Have a fresh document, or what there is after `WAIT_S`; returns at once after a failure."""
        if self.age_s < FRESH_S:
            return
        if self._asking is None or self._asking.done():
            if self._clock() - self._failed_s < RETRY_S:
                return
            self._asking = asyncio.create_task(self._asked())
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                await asyncio.shield(self._asking)

    async def _asked(self) -> None:
        try:
            self.document = await self._ask()
        except Exception as error:  # noqa: BLE001 - a scrape says that it is down; the answer is for the log
            self._failed_s = self._clock()
            logger.info("the status is not known: %s", error)
        else:
            self._came_s = self._clock()


async def exposition(accept: str, registry: CollectorRegistry, feed: StatusFeed | None) -> Response:
    """The answer to a scrape, in the form that it asks for."""
    if feed is not None:
        await feed.refresh()
    encode, content_type = choose_encoder(accept)
    return Response(encode(registry), headers={"content-type": content_type})


class ControlMetrics(Collector):
    """All figures of one control plane. `judged` are counts of a gateway, by class."""

    def __init__(
        self,
        model: str,
        feed: StatusFeed,
        judged: Judged | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.model, self.feed, self._clock = model, feed, clock
        self._judged: Judged = judged or dict

    def collect(self) -> Iterator[Metric]:
        """Everything as families of prometheus_client."""
        age_s, document = self.feed.age_s, self.feed.document
        known = document is not None and age_s < FORGET_S
        yield self._gauge("headway_control_plane_up", "1 while the planner answers", float(known))
        if document is not None:
            yield self._gauge("headway_status_age_seconds", "Age of the planner's last status", age_s)
        if document is None or not known:
            return
        health = (document.get("verdict") or {}).get("state")
        verdicts = (((state,), float(state == health)) for state in (VERDICTS if health else ()))
        yield self._labelled(
            "headway_verdict", "1 for the state of health, as on the live page", ("state",), verdicts
        )
        yield from self._planner(document)
        yield from self._pools(document)
        yield from self._decision(document)
        yield from self._slo(document)
        yield from self._inputs(document)
        yield from self._advice(document.get("advice") or {})

    def _planner(self, document: Document) -> Iterator[Metric]:
        planner = document["planner"]
        state = planner["state"]
        states = (((name,), float(name == state)) for name in PLANNER_STATES)
        yield self._labelled(
            "headway_planner_state", "1 for the planner's state of these four", ("state",), states
        )
        yield self._gauge(
            "headway_planner_dry_run", "1 while decisions are not carried out", planner.get("dry_run")
        )
        yield self._gauge(
            "headway_planner_interval_seconds", "Between two decisions", planner.get("interval_s")
        )
        ticks = (
            ((kind,), planner.get(key))
            for kind, key in (("all", "ticks"), ("late", "late_ticks"), ("missed", "missed_ticks"),
                              ("failed", "failed_ticks"))
        )  # fmt: skip
        yield self._counted(
            "headway_planner_ticks",
            "Ticks: all, of these late and failed; and missed ones, which were skipped",
            ("kind",),
            ticks,
        )
        took = SummaryMetricFamily(
            "headway_planner_tick_seconds",
            "Time of a tick, from the first question to the connector's answer",
            labels=("model",),
        )
        took.add_metric((self.model,), planner.get("decided", 0), planner.get("deciding_s", 0.0))
        yield took
        yield self._gauge("headway_planner_last_tick_seconds", "Time of the last tick", planner.get("tick_s"))
        decisions = (
            ((role, reason), float(count))
            for role, counts in (planner.get("decisions") or {}).items()
            for reason, count in counts.items()
        )
        text = "Decisions by the reason of each pool"
        yield self._counted("headway_decisions", text, ("role", "reason"), decisions)
        yield self._gauge(
            "headway_gpu_budget",
            "GPUs that may be used; none without a budget",
            planner.get("max_gpu_budget"),
        )
        fleet = document.get("fleet") or {}
        text = "GPUs of the common budget that its last decision wanted"
        yield self._gauge("headway_fleet_wanted_gpus", text, fleet.get("wanted"))
        text = "GPUs of the common budget that its last decision was granted"
        yield self._gauge("headway_fleet_granted_gpus", text, fleet.get("granted"))
        connector = document.get("connector") or {}
        failures = iter([((str(connector.get("kind")),), connector.get("failures"))])
        text = "Calls of the connector's other side that failed; kind is the connector"
        yield self._counted("headway_connector_failures", text, ("kind",), failures)

    def _pools(self, document: Document) -> Iterator[Metric]:
        pools: Document = document.get("pools") or {}
        counts = (((role, state), pool.get(state)) for role, pool in pools.items() for state in STATES)
        yield self._labelled("headway_replicas", "Replicas as observed", ("role", "state"), counts)
        for bound, which in (("min", "Least"), ("max", "Most")):
            limits = (((role,), pool.get(f"{bound}_replicas")) for role, pool in pools.items())
            yield self._labelled(
                f"headway_{bound}_replicas", f"{which} replicas of the pool", ("role",), limits
            )
        connector: Document = document.get("connector") or {}
        edited = {edit["role"] for edit in connector.get("foreign_edits") or ()}
        edits = (((role,), float(role in edited)) for role in pools)
        text = "1 while someone else set the pool's count"
        yield self._labelled("headway_foreign_edits", text, ("role",), edits)
        text = "Other controllers of the same counts, such as an HPA"
        yield self._gauge("headway_rival_controllers", text, float(len(connector.get("rivals") or ())))
        used = (((role,), _gpus(pool)) for role, pool in pools.items())
        text = "GPUs of replicas that start, serve or drain"
        yield self._labelled("headway_gpus_in_use", text, ("role",), used)

    def _decision(self, document: Document) -> Iterator[Metric]:
        last: Document = document.get("last_decision") or {}
        targets: Document = last.get("targets") or {}
        wanted = (((role,), float(count)) for role, count in targets.items())
        yield self._labelled("headway_target_replicas", "Replicas of the last decision", ("role",), wanted)
        yield self._gauge("headway_decision_id", "The last decision", last.get("id"))
        done = last.get("reached_at") is not None or last.get("already") or last.get("status") == DRY_RUN
        waiting = float(not done) if last else None
        yield self._gauge("headway_decision_pending", "1 until the last decision is reached", waiting)
        status = last.get("status")
        answers = (((name,), float(name == status)) for name in (ANSWERS if status else ()))
        text = "1 for the connector's answer to the last decision"
        yield self._labelled("headway_decision_status", text, ("status",), answers)
        missing: Document = last.get("missing") or {}
        lacking = (((role,), float((missing.get(role) or {}).get("replicas", 0))) for role in targets)
        text = "Replicas that were ordered and never became ready"
        yield self._labelled("headway_capacity_missing_replicas", text, ("role",), lacking)
        lost = (((role,), (missing.get(role) or {}).get("lost_share")) for role in targets)
        text = "Share of requests lost for want of them"
        yield self._labelled("headway_capacity_missing_lost_ratio", text, ("role",), lost)
        expected = (((role,), value) for role, value in (last.get("expected_replicas") or {}).items())
        text = "Policy headway: work expected until a new replica serves, in replicas"
        yield self._labelled("headway_expected_load_replicas", text, ("role",), expected)
        forecast: Document = last.get("forecast") or {}
        measured: Document = document.get("measured") or {}
        interval_s = document["planner"].get("interval_s")
        span_s = _difference(measured.get("end_s"), measured.get("start_s"))
        rates = (((), _ratio(forecast.get("requests"), interval_s)),)
        yield self._labelled(
            "headway_forecast_requests_per_second",
            "Arrivals forecast for the next interval, where the policy asks a predictor",
            (),
            iter(rates),
        )
        text = "Error of the last 60 forecasts of requests: sum of absolute errors over the sum of arrivals"
        yield self._gauge("headway_forecast_error_ratio", text, last.get("forecast_error"))
        rates = (((), _ratio(measured.get("requests"), span_s)),)
        yield self._labelled(
            "headway_measured_requests_per_second", "Arrivals of the last interval", (), iter(rates)
        )
        for kind, source in (("forecast", forecast), ("measured", measured)):
            lengths = (((key[0:3],), source.get(key)) for key in ("isl_tokens", "osl_tokens"))
            text = f"Mean length of prompts (isl) and outputs (osl), {kind}"
            yield self._labelled(f"headway_{kind}_length_tokens", text, ("of",), lengths)

    def _slo(self, document: Document) -> Iterator[Metric]:
        slo: Document = document.get("slo") or {}
        classes: dict[str, Document] = {ALL: slo, **(slo.get("classes") or {})}
        targets = (
            ((name, kind), None if each.get(key) is None else each[key] * MS)
            for name, each in classes.items()
            for kind, key in (("ttft", "ttft_ms"), ("itl", "itl_ms"), ("tpot", "tpot_ms"))
        )
        yield self._labelled(
            "headway_slo_target_seconds",
            "SLO of a class (all: the deployment's): ttft, and itl or tpot",
            ("class", "of"),
            targets,
        )
        wanted = {name: each.get("attainment") or slo.get("attainment") for name, each in classes.items()}
        stated = (((name,), share) for name, share in wanted.items())
        text = "Target: share of requests that should meet their SLO"
        yield self._labelled("headway_slo_attainment_target_ratio", text, ("class",), stated)
        attained = self._attained(document, wanted)
        shares = (((name, window), share) for (name, window), share in attained.items())
        text = "Share of requests that met their SLO, in the last interval or in total; classes in total"
        yield self._labelled("headway_slo_attainment_ratio", text, ("class", "window"), shares)
        burns = (
            ((name, window), _burn(share, wanted.get(name))) for (name, window), share in attained.items()
        )
        text = "Share of the error budget used: 1 is all of it"
        yield self._labelled("headway_slo_error_budget_burn_ratio", text, ("class", "window"), burns)

    def _attained(self, document: Document, wanted: Mapping[str, Any]) -> dict[tuple[str, str], float | None]:
        shares: Document = document.get("attainment") or {}
        found = {(ALL, INTERVAL): shares.get("last_interval"), (ALL, TOTAL): shares.get("total")}
        for name, (met, missed) in self._judged().items():
            if name in wanted:
                found[name, TOTAL] = _ratio(met, met + missed)
        return found

    def _inputs(self, document: Document) -> Iterator[Metric]:
        now_s = self._clock()
        last: Document = document.get("last_decision") or {}
        seen = {**(document.get("seen_at") or {}), "decision": last.get("created_at")}
        ages = (((name,), _age(now_s, at_s)) for name, at_s in seen.items())
        text = "Age of the planner's inputs and of its last decision"
        yield self._labelled("headway_input_age_seconds", text, ("input",), ages)
        parts: Document = document.get("components") or {}
        well = (((name,), float(bool(part.get("ok")))) for name, part in parts.items())
        text = "1 for an actor or the connector that answered last time"
        yield self._labelled("headway_component_up", text, ("component",), well)
        silent = (((each["part"],), _age(now_s, each["since_s"])) for each in document.get("silent") or ())
        text = "Since when a part hangs: an engine without progress, an actor or gateway without an answer"
        yield self._labelled("headway_silent_seconds", text, ("part",), silent)

    def _advice(self, advice: Document) -> Iterator[Metric]:
        windows = _windows(advice)
        forecast = "What the plan of a dry run would have saved, with a 90 % interval"
        yield from self._saved("headway_advice_", forecast, windows)
        acting = "What acting has saved, compared with the fleet before"
        yield from self._saved("headway_acting_", acting, _windows(advice.get("acted") or {}))
        attained = (
            ((name, fleet), ((window.get(fleet) or {}).get("attainment") or {}).get("value"))
            for name, window in windows.items()
            for fleet in ("stood", "planned")
        )
        text = "Attainment of the real fleet and of the planned one"
        yield self._labelled("headway_advice_attainment_ratio", text, ("window", "fleet"), attained)

    def _saved(self, prefix: str, text: str, windows: Mapping[str, Document]) -> Iterator[Metric]:
        for name, key, scale, unit in SAVED:
            saved = (
                ((window, bound), None if value is None else value * scale)
                for window, figures in windows.items()
                for bound, value in (figures.get(key) or {}).items()
                if bound in BOUNDS
            )
            yield self._labelled(f"{prefix}{name}", f"{text}: {unit}", ("window", "bound"), saved)

    def _gauge(self, name: str, text: str, value: float | None) -> Metric:
        return self._labelled(name, text, (), iter([((), value)]))

    def _labelled(self, name: str, text: str, labels: Labels, samples: Samples) -> Metric:
        family = GaugeMetricFamily(name, text, labels=("model", *labels))
        return self._filled(family, samples)

    def _counted(self, name: str, text: str, labels: Labels, samples: Samples) -> Metric:
        family = CounterMetricFamily(name, text, labels=("model", *labels))
        return self._filled(family, samples)

    def _filled(self, family: GaugeMetricFamily | CounterMetricFamily, samples: Samples) -> Metric:
        for labels, value in samples:
            if value is not None:
                family.add_metric((self.model, *labels), float(value))
        return family


def _windows(advice: Document) -> Mapping[str, Document]:
    return {name: advice.get(name) or {} for name in ("hour", "day", "start")}


def _gpus(pool: Document) -> float | None:
    """GPUs of a pool, of the counts that are known; None where none is."""
    counts = [pool.get(state) for state in ("starting", "ready", "draining")]
    known = [count for count in counts if count is not None]
    return float(sum(known) * (pool.get("gpus_per_replica") or 1)) if known else None


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _difference(end: float | None, start: float | None) -> float | None:
    return None if end is None or start is None else end - start


def _burn(share: float | None, target: float | None) -> float | None:
    return None if share is None or target is None or target >= 1.0 else (1.0 - share) / (1.0 - target)


def _age(now_s: float, at_s: float | None) -> float | None:
    return None if at_s is None else max(0.0, now_s - at_s)
