"""The compiled curves against the model that they are the tables of."""

from math import inf, nan

import numpy as np
import pytest

from headway.routing.fleet.table import DECODE_ROLE, MIXED_ROLE, PREFILL_ROLE, FleetRow
from headway.routing.predict.forecast import ROWS, ForecastRow, features_of
from headway.routing.predict.learned_curves import NO_CURVE, corrected, curves_of
from predictors.latency import LatencyFeatures, LatencyModel, TargetModel
from predictors.latency.curve import Basis, Curve, Learned, Span

REPLICAS, RAMPS = 40, 9
FREE = np.array([[0.0], [inf], [0.0], [inf]]), 1.0
"""No limits, and the whole weight."""
TTFT, TPOT, OTHERS = ForecastRow.TTFT_S, ForecastRow.TPOT_S, ForecastRow.OTHERS_TPOT_S


def curve(draw: np.random.Generator, *, has_prior: bool = True) -> Curve:
    source = np.sort(draw.integers(0, 8, RAMPS))
    scale = 10.0 ** draw.uniform(-1.0, 4.0, RAMPS)
    width = np.where(draw.random(RAMPS) < 0.3, inf, scale * draw.random(RAMPS))
    basis = Basis(source=source, start=scale * draw.random(RAMPS), width=width, has_prior=has_prior)
    span = Span(0.3, 0.7, 0.2 * draw.random(), 1.0 + draw.random(), 0.5, 5.0)
    return Curve(basis=basis, weights=draw.random(basis.size) * 1e-3, span=span)


def learned(draw: np.random.Generator) -> TargetModel:
    return TargetModel(learned=Learned(centre=curve(draw), quantile=curve(draw), factor=1.3))


def fleet(draw: np.random.Generator) -> np.ndarray:
    table = np.floor(10.0 ** draw.uniform(0.0, 4.0, (len(FleetRow), REPLICAS)))
    table[FleetRow.CAPACITY_TOKENS] = np.where(draw.random(REPLICAS) < 0.2, inf, 20_000.0)
    table[FleetRow.PREFILL_TOKENS, 3] = nan
    return table


def inputs_of(
    role: int, table: np.ndarray, slots: np.ndarray, cached: np.ndarray, tokens: float
) -> np.ndarray:
    rows = [features_of(role, table, slot, kept, tokens) for slot, kept in zip(slots, cached, strict=True)]
    return LatencyFeatures.from_table(np.array(rows)).inputs()


@pytest.mark.parametrize("role", [MIXED_ROLE, PREFILL_ROLE, DECODE_ROLE])
@pytest.mark.parametrize("seed", range(5))
def test_they_say_what_the_model_says(seed: int, role: int) -> None:
    draw = np.random.default_rng(seed)
    model = LatencyModel(ttft=learned(draw), tpot=learned(draw))
    table, slots = fleet(draw), draw.permutation(REPLICAS)[:30]
    cached, tokens = np.floor(draw.random(30) * 900.0), 1000.0
    prior = draw.random((ROWS, 30)) + 1e-3
    prior[:, 5] = nan
    prior[TTFT, 6] = inf
    ttft, tpot = curves_of(model)
    found = corrected(role, table, slots, cached, tokens, prior, (0.25, ttft, tpot, *FREE))

    inputs, wanted = inputs_of(role, table, slots, cached, tokens), prior.copy()
    wanted[TTFT] += 0.25
    for row, target, asked in ((TTFT, model.ttft, DECODE_ROLE), (TPOT, model.tpot, PREFILL_ROLE)):
        if role == asked:
            continue
        known = np.isfinite(wanted[row])
        answer = target.predict(inputs, np.where(known, wanted[row], 1.0))[0]
        wanted[row] = np.where(known & np.isfinite(answer), answer, wanted[row])
    wanted[OTHERS] *= wanted[TPOT] / prior[TPOT]
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    assert not np.allclose(found, prior, equal_nan=True)


def test_a_target_without_curves_keeps_its_prior() -> None:
    draw = np.random.default_rng(0)
    ttft, tpot = curves_of(LatencyModel(ttft=learned(draw), tpot=TargetModel()))
    assert tpot is NO_CURVE
    prior = draw.random((ROWS, 2))
    slots, cached = np.arange(2), np.zeros(2)
    found = corrected(MIXED_ROLE, fleet(draw), slots, cached, 10.0, prior, (0.0, ttft, tpot, *FREE))
    assert (found[TTFT] != prior[TTFT]).all()
    np.testing.assert_array_equal(found[1:], prior[1:])


def test_curves_without_a_prior_go_by_the_inputs_alone() -> None:
    draw = np.random.default_rng(1)
    alone = curve(draw, has_prior=False)
    model = LatencyModel(ttft=TargetModel(learned=Learned(centre=alone, quantile=alone)), tpot=TargetModel())
    ttft, tpot = curves_of(model)
    table, slots, cached = fleet(draw), np.arange(3), np.zeros(3)
    found = corrected(MIXED_ROLE, table, slots, cached, 10.0, np.ones((ROWS, 3)), (0.0, ttft, tpot, *FREE))
    inputs = inputs_of(MIXED_ROLE, table, slots, cached, 10.0)
    np.testing.assert_allclose(found[TTFT], alone.at(inputs, None), rtol=1e-12)


def bounded(limits: np.ndarray, weight: float, running: float) -> np.ndarray:
    """A curve that says 50 times the prior, which is 1 s, at a replica of kind 0."""
    nothing = np.empty(0)
    basis = Basis(source=np.empty(0, np.intp), start=nothing, width=nothing, has_prior=True)
    fifty = Curve(basis=basis, weights=np.array([0.0, 50.0]))
    target = TargetModel(learned=Learned(centre=fifty, quantile=fifty))
    ttft, tpot = curves_of(LatencyModel(ttft=target, tpot=target))
    table, places = np.zeros((len(FleetRow), 1)), np.arange(1)
    table[FleetRow.CAPACITY_TOKENS], table[FleetRow.RUNNING] = 1e5, running
    figures = 0.0, ttft, tpot, limits, weight
    return corrected(MIXED_ROLE, table, places, np.zeros(1), 10.0, np.ones((ROWS, 1)), figures)[:, 0]


def test_what_they_say_stays_within_limits() -> None:
    limits = np.array([[0.5, 0.125], [1.5, 8.0], [0.5, 0.125], [1.25, 4.0]])
    idle, busy = bounded(limits, 1.0, 0.0), bounded(limits, 1.0, 1.0)
    assert (idle[TTFT], idle[TPOT], idle[OTHERS]) == (1.5, 1.25, 1.25)
    assert (busy[TTFT], busy[TPOT], busy[OTHERS]) == (8.0, 4.0, 4.0)


def test_evidence_that_ages_fades_to_the_prior() -> None:
    free = np.array([[0.0, 0.0], [inf, inf], [0.0, 0.0], [inf, inf]])
    assert bounded(free, 0.5, 1.0)[TPOT] == pytest.approx(50.0**0.5)
    assert bounded(free, 0.0, 1.0)[TPOT] == pytest.approx(1.0)
