"""The offload decision: classes, the document's rules, the calibrated estimate, deadlines."""

from dataclasses import replace
from math import inf, isnan, nan
from typing import Any

import numpy as np
import pytest

from headway.config.routing import OffloadSettings
from headway.routing import RouteClass, RoutingError
from headway.routing.decide.offload import (
    after_deadline,
    after_loss,
    best_prefill,
    classify,
    decide,
    delays_at,
)
from headway.routing.offload import OffloadQuestion, OffloadReason, Site

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


@pytest.mark.parametrize("mode", ["never", "always", "heuristic", "cost"])
@pytest.mark.parametrize("uncached", [0, 1_024, 1_025, 8_191])
def test_small_prompts_stay_in_every_mode(mode: Any, uncached: int) -> None:
    decision = decide(ask(d=replace(BUSY, uncached_tokens=uncached)), OffloadSettings(mode=mode))
    assert not decision.offload
    assert decision.reason is OffloadReason.BELOW_THRESHOLD
    assert decision.route_class is (RouteClass.WARM if uncached <= 1_024 else RouteClass.MEDIUM)


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("never", OffloadReason.NEVER),
        ("always", OffloadReason.NO_OTHER_REPLICA),
        ("heuristic", OffloadReason.NO_OTHER_REPLICA),
        ("cost", OffloadReason.NO_OTHER_REPLICA),
    ],
)
def test_without_another_replica_nothing_is_offloaded(mode: Any, reason: OffloadReason) -> None:
    decision = decide(ask(p=None), OffloadSettings(mode=mode))
    assert (decision.offload, decision.reason) == (False, reason)
    assert decision.route_class is RouteClass.HEAVY_COLO
    assert decision.deadline_s is None


def test_always_offloads_whatever_the_load() -> None:
    decision = decide(ask(d=FREE, p=BUSY), OffloadSettings(mode="always"))
    assert (decision.offload, decision.reason) == (True, OffloadReason.ALWAYS)
    assert decision.route_class is RouteClass.HEAVY_P2P


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
    decision = decide(ask(d=d, p=p, mean_outstanding_tokens=mean), HEURISTIC)
    assert decision.reason is reason
    assert decision.offload is (reason is OffloadReason.P_IDLE_D_BUSY)
    assert isnan(decision.cost_s)


def test_delays_are_what_the_theory_says() -> None:
    busy = site(queue_s=3.0, running=4, waiting=2, remaining_tokens=5.0, iteration_s=0.02, arrival_rps=0.5)
    delays = delays_at(busy, chunk_tokens=2_000)  # ten iterations
    assert delays.own_s == pytest.approx(3.0 + 2.0 + 10 * 0.02)
    assert delays.decode_s == pytest.approx(6 * 2.0 * 0.5)  # five tokens left of ten iterations
    assert delays.behind_s == pytest.approx(0.5 * (3.0 * 2.0 + 2.0))
    assert delays.others_s == pytest.approx(delays.decode_s + delays.behind_s)


def test_what_p_forgets_is_a_cost_and_what_d_forgets_is_not() -> None:
    p = site(running=1, reuse=0.25)
    assert delays_at(p, chunk_tokens=2_000).evicted_s == pytest.approx(0.25 * 2.0 * 2)
    plain = decide(ask(p=replace(p, reuse=0.0)), COST)
    at_p, at_d = (
        decide(ask(p=p), COST),
        decide(ask(d=replace(BUSY, reuse=0.25), p=replace(p, reuse=0.0)), COST),
    )
    assert at_p.cost_s - plain.cost_s == pytest.approx(1.0)
    assert (at_d.cost_s, at_d.benefit_s) == (plain.cost_s, plain.benefit_s)


def test_whole_prompts_are_one_iteration() -> None:
    assert delays_at(site(iteration_s=0.02), chunk_tokens=0).own_s == pytest.approx(2.02)


def test_decodes_spared_pay_for_transfer() -> None:
    decision = decide(ask(), COST)
    assert (decision.reason, decision.route_class) == (OffloadReason.P_IDLE_D_BUSY, RouteClass.HEAVY_P2P)
    assert decision.cost_s == pytest.approx(0.5)
    assert decision.benefit_s == pytest.approx(20.0)  # ten decodes, two seconds each


def test_a_queue_spared_pays_too() -> None:
    d = site(queue_s=5.0, running=1, remaining_tokens=1.0, decode_tokens=1.0)
    decision = decide(ask(d=d), COST)
    assert (decision.offload, decision.reason) == (True, OffloadReason.D_OVERLOADED)
    assert decision.cost_s == 0.0
    assert decision.benefit_s == pytest.approx(
        4.5 + 0.2
    )  # starts 5 s earlier less the transfer; 1 of 10 rounds


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
    decision = decide(ask(p=p), COST)
    assert (decision.offload, decision.reason) == (False, reason)


def test_a_transfer_longer_than_what_it_spares_is_too_dear() -> None:
    decision = decide(ask(p=replace(BUSY, running=9), transfer_s=2.5), COST)
    assert (decision.offload, decision.reason) == (False, OffloadReason.TRANSFER_TOO_DEAR)


def test_p_pays_for_its_own_decodes() -> None:
    assert decide(ask(p=replace(BUSY, running=9)), COST).offload
    assert not decide(ask(p=replace(BUSY, running=10)), COST).offload


@pytest.mark.parametrize("settings", [COST, HEURISTIC])
def test_an_idle_d_keeps_its_prompt_even_if_p_is_warmer(settings: OffloadSettings) -> None:
    warm = site(uncached_tokens=100, prefill_s=0.01)
    decision = decide(ask(d=FREE, p=warm), settings)
    assert (decision.offload, decision.reason) == (False, OffloadReason.D_IDLE)


def test_the_deadline_follows_from_the_predicted_time_at_p() -> None:
    p = site(queue_s=1.0, iteration_s=0.05)
    settings = OffloadSettings(mode="cost", deadline_factor=2.0, deadline_slack_ms=500.0)
    assert decide(ask(p=p), settings).deadline_s == pytest.approx(100.0 + 2.0 * (1.0 + 2.0 + 0.5) + 0.5)


def test_the_deadline_without_a_profile() -> None:
    p = site(prefill_s=nan, outstanding_tokens=1_000.0)
    assert decide(ask(p=p), OffloadSettings(mode="always")).deadline_s is None


@pytest.mark.parametrize(
    ("after", "reason"),
    [(after_deadline, OffloadReason.DEADLINE_PASSED), (after_loss, OffloadReason.P_LOST)],
)
def test_what_is_given_up_is_colocated(after: Any, reason: OffloadReason) -> None:
    decision = after(decide(ask(), COST))
    assert (decision.offload, decision.reason) == (False, reason)
    assert decision.route_class is RouteClass.HEAVY_COLO
    assert decision.deadline_s is None
    colocated = decide(ask(d=FREE), COST)
    assert after(colocated) == colocated


@pytest.mark.parametrize(
    "changes",
    [{"queue_s": -1.0}, {"queue_s": nan}, {"queue_s": inf}, {"running": -1}, {"prefill_s": -0.1}],
)
def test_impossible_sites_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(RoutingError, match="offload"):
        site(**changes)


def test_p_is_the_replica_that_is_done_first() -> None:
    queue_s, prefill_s = np.array([0.0, 1.0, 3.0, 0.5]), np.array([9.0, 2.0, 0.5, 2.5])
    assert best_prefill(queue_s, prefill_s) == 1  # 9.0, 3.0, 3.5, 3.0: the first of equals
    assert best_prefill(queue_s, prefill_s, d=1) == 3
    assert best_prefill(queue_s, prefill_s, others_s=np.array([0.0, 9.0, 0.0, 9.0])) == 2


def test_no_candidate_is_said() -> None:
    assert best_prefill(np.array([]), np.array([])) is None
    assert best_prefill(np.array([1.0]), np.array([1.0]), d=0) is None
    assert best_prefill(np.array([1.0, 1.0]), np.array([1.0, nan]), d=0) is None
