"""The offload decision: classes, the document's rules, the calibrated estimate, deadlines."""

from dataclasses import replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from headway.config.routing import OffloadSettings
from headway.routing import RouteClass
from headway.routing.decide.offload import best_prefill, classify, decide, delays_at, sides
from headway.routing.offload import OFFLOADING, OffloadQuestion, OffloadReason, Site
from tests.routing.routers import placed, request, router

COST = OffloadSettings(mode="cost")
HEURISTIC = OffloadSettings(mode="heuristic")


def site(**changes: Any) -> Site:
    return replace(Site(uncached_tokens=20_000, prefill_s=2.0), **changes)


BUSY = site(running=10, remaining_tokens=300.0, outstanding_tokens=90_000.0, decode_tokens=90_000.0)
FREE = site()


def ask(d: Site = BUSY, p: Site | None = FREE, **changes: Any) -> OffloadQuestion:
    question = OffloadQuestion(
        now_s=100.0, d=d, p=p, transfer_s=0.5, chunk_tokens=2_000, mean_outstanding_tokens=50_000.0
    )
    return replace(question, **changes)


@pytest.mark.parametrize(
    ("uncached", "expected"),
    [
        (0, RouteClass.WARM),
        (1_024, RouteClass.WARM),
        (1_025, RouteClass.MEDIUM),
        (8_191, RouteClass.MEDIUM),
        (8_192, RouteClass.HEAVY_COLO),
        (10**6, RouteClass.HEAVY_COLO),
    ],
)
def test_classes_change_at_their_thresholds(uncached: int, expected: RouteClass) -> None:
    assert classify(uncached, OffloadSettings()) is expected


@pytest.mark.parametrize("mode", ["always", "heuristic", "cost", "never"])
@pytest.mark.parametrize(
    ("tokens", "route_class"), [(1_024, "WARM"), (8_191, "MEDIUM"), (8_192, "HEAVY_COLO")]
)
def test_small_prompts_stay_in_every_mode_and_heavy_ones_without_another_replica(
    mode: str, tokens: int, route_class: str
) -> None:
    heavy = route_class == "HEAVY_COLO"
    one = router("least_load", count=1 if heavy else 2, offload={"mode": mode})
    placement = placed(one.submit(0.0, request(input_tokens=tokens)))
    reason = "no_other_replica" if heavy else "below_threshold"
    assert (placement.split, placement.deadline_s) == (False, inf)
    assert placement.route_class == route_class
    assert placement.reason == (reason if mode != "never" else "least_load")


def test_always_offloads_whatever_the_load() -> None:
    decision = decide(ask(d=FREE, p=BUSY), OffloadSettings(mode="always"))
    assert decision[:2] == (RouteClass.HEAVY_P2P, OffloadReason.ALWAYS)


@pytest.mark.parametrize(
    ("p_tokens", "d_tokens", "mean", "decoding", "reason"),
    [
        (0.0, 1.0, 0.5, 1.0, OffloadReason.P_IDLE_D_BUSY),
        (99.0, 100.0, 66.0, 1.0, OffloadReason.P_IDLE_D_BUSY),  # 99 is exactly 1.5 times the mean
        (100.0, 100.0, 100.0, 1.0, OffloadReason.P_BUSIER),
        (101.0, 100.0, 100.0, 1.0, OffloadReason.P_BUSIER),
        (99.0, 100.0, 65.9, 1.0, OffloadReason.P_OVERLOADED),
        (0.0, 100.0, 50.0, 0.0, OffloadReason.D_IDLE),
        (0.0, 0.0, 0.0, 0.0, OffloadReason.D_IDLE),
        (0.0, 0.0, 0.0, 1.0, OffloadReason.P_BUSIER),
    ],
)
def test_the_heuristic_is_the_documents(
    p_tokens: float, d_tokens: float, mean: float, decoding: float, reason: OffloadReason
) -> None:
    d = replace(BUSY, outstanding_tokens=d_tokens, decode_tokens=decoding)
    p = replace(FREE, outstanding_tokens=p_tokens)
    assert decide(ask(d=d, p=p, mean_outstanding_tokens=mean), HEURISTIC).reason is reason


def test_what_p_forgets_is_a_cost_and_what_d_forgets_is_not() -> None:
    p = site(running=1, reuse=0.25)
    assert delays_at(p, chunk_tokens=2_000).evicted_s == pytest.approx(0.25 * 2.0 * 2)
    cold = replace(p, reuse=0.0)
    (cost_s, benefit_s), warm_d = sides(ask(), cold), ask(d=replace(BUSY, reuse=0.25))
    assert sides(ask(), p) == (pytest.approx(cost_s + 1.0), benefit_s)
    assert sides(warm_d, cold) == (cost_s, benefit_s)


def test_whole_prompts_are_one_iteration() -> None:
    assert delays_at(site(iteration_s=0.02), chunk_tokens=0).own_s == pytest.approx(2.02)


def test_decodes_spared_pay_for_transfer() -> None:
    assert decide(ask(), COST)[:2] == (RouteClass.HEAVY_P2P, OffloadReason.P_IDLE_D_BUSY)
    assert sides(ask(), FREE) == (0.5, pytest.approx(20.0))  # ten decodes, two seconds each


def test_a_queue_spared_pays_too() -> None:
    question = ask(d=site(queue_s=5.0, running=1, remaining_tokens=1.0, decode_tokens=1.0))
    assert decide(question, COST)[:2] == (RouteClass.HEAVY_P2P, OffloadReason.D_OVERLOADED)
    # It starts 5 s earlier less the transfer; 1 of 10 rounds.
    assert sides(question, FREE) == (0.0, pytest.approx(4.5 + 0.2))


@pytest.mark.parametrize(
    ("p", "reason"),
    [
        (replace(BUSY, running=10), OffloadReason.NO_GAIN),
        (replace(BUSY, running=11), OffloadReason.NO_GAIN),
        (replace(BUSY, queue_s=30.0), OffloadReason.P_OVERLOADED),
        (replace(BUSY, running=8, prefill_s=6.0), OffloadReason.CACHE_LOST),
        (replace(FREE, prefill_s=nan), OffloadReason.NO_ESTIMATE),
    ],
)
def test_why_a_heavy_prompt_stays(p: Site, reason: OffloadReason) -> None:
    assert decide(ask(p=p), COST) == (RouteClass.HEAVY_COLO, reason, None)


def test_a_transfer_longer_than_what_it_spares_is_too_dear() -> None:
    assert decide(ask(p=replace(BUSY, running=9)), COST).reason in OFFLOADING
    decision = decide(ask(p=replace(BUSY, running=9), transfer_s=2.5), COST)
    assert decision == (RouteClass.HEAVY_COLO, OffloadReason.TRANSFER_TOO_DEAR, None)


def test_the_deadline_follows_from_the_predicted_time_at_p() -> None:
    p = site(queue_s=1.0, iteration_s=0.05)
    settings = OffloadSettings(mode="cost", deadline_factor=2.0, deadline_slack_ms=500.0)
    assert decide(ask(p=p), settings).deadline_s == pytest.approx(100.0 + 2.0 * (1.0 + 2.0 + 0.5) + 0.5)


def test_the_deadline_without_a_profile() -> None:
    p = site(prefill_s=nan, outstanding_tokens=1_000.0)
    assert decide(ask(p=p), OffloadSettings(mode="always")).deadline_s is None


def test_p_is_the_replica_that_is_done_first() -> None:
    assert best_prefill(np.array([0.0, 3.0, 3.5, 3.0]), d=0) == 1  # the first of equals
    assert best_prefill(np.array([9.0, 3.0, nan, 3.5]), d=1) == 3
    assert best_prefill(np.array([1.0]), d=0) is None
    assert best_prefill(np.array([1.0, nan]), d=0) is None
