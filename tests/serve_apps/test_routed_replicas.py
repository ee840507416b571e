"""Requests found on replicas, and the metrics of routing."""

import math

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headway.planning import Role
from headway.routing import Placement, ReplicaUpdate, RouteClass
from serve_apps.membership import Membership
from serve_apps.routed.metrics import RoutingCounts, RoutingMetrics
from serve_apps.routed.replicas import ReplicaDiff

LOAD = {"running": 0, "waiting": 0, "kv_usage": 0.0}


def test_a_gpu_type_that_is_reported_later_is_news():
    pool = Membership()
    census = ReplicaDiff({Role.MIXED: pool}, lambda replica: False)
    pool.update([("a", {})])
    assert census.news(0.0) == [ReplicaUpdate(replica="a", role=Role.MIXED)]
    pool.update([("a", {**LOAD, "gpu_type": "L20"})])
    (update,) = census.news(1.0)
    assert update.gpu_type == "L20"
    pool.update([("a", {**LOAD, "gpu_type": "L20"})])
    assert not census.news(2.0)


def test_adapters_that_a_replica_has_are_told():
    pool = Membership()
    census = ReplicaDiff({Role.MIXED: pool}, lambda replica: False)
    pool.update([("a", {**LOAD, "adapters": ("x", "y"), "adapter_room": 2})])
    (update,) = census.news(0.0)
    assert (update.load.adapters, update.load.adapter_room) == (("x", "y"), 2)
    pool.update([("a", {**LOAD, "adapters": None, "adapter_room": None})])
    (update,) = census.news(1.0)
    assert update.load.adapters is None


def scrape(counts: RoutingCounts) -> dict[tuple[str, ...], float]:
    """Samples by name and label values, which Prometheus orders by the labels' names."""
    registry = CollectorRegistry()
    registry.register(RoutingMetrics("m", lambda: counts))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (sample.name, *(value for label, value in sample.labels.items() if label != "model")): sample.value
        for family in families
        for sample in family.samples
        if sample.labels["model"] == "m"
    }


def test_nothing_has_happened_yet():
    assert scrape(RoutingCounts()) == {
        ("headway_router_queued_requests",): 0.0,
        ("headway_router_sessions_total",): 0.0,
    }


def test_placements_sheds_fallbacks_and_what_the_router_says():
    counts = RoutingCounts(sessions=2, queued=3)
    placed = Placement(
        request_id="r",
        prefill_replica="p",
        decode_replica="d",
        profile="slo",
        reason="p_idle_d_busy",
        route_class=RouteClass.HEAVY_P2P,
    )
    for _ in range(2):
        counts.placed(placed)
    counts.sheds["no_headroom"] += 1
    counts.fallbacks["timeout"] += 4
    counts.figures = {
        "prediction": {("ttft", "error"): 0.05, ("tpot", "error"): math.nan},
        "transfer": {("factor",): 1.25},
        "busy_s": {("mixed", "abc"): 0.5},
        "queued": {(): 9.0},
        "event_errors": {("Submit",): 2.0},
    }
    assert scrape(counts) == {
        ("headway_router_placements_total", "slo", "p_idle_d_busy", "HEAVY_P2P"): 2.0,
        ("headway_router_sheds_total", "no_headroom"): 1.0,
        ("headway_router_fallback_total", "timeout"): 4.0,
        ("headway_router_sessions_total",): 2.0,
        ("headway_router_queued_requests",): 3.0,
        ("headway_router_prediction", "error", "ttft"): 0.05,
        ("headway_router_event_errors_total", "Submit"): 2.0,
        ("headway_router_transfer", "factor"): 1.25,
        ("headway_router_replica_busy_seconds_total", "abc", "mixed"): 0.5,
    }
