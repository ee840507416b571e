"""The compiled curves against the model that they are the tables of."""

from math import inf, nan

import numpy as np
import pytest

from headway.routing.forecast import (
    DECODE_ROLE,
    MIXED_ROLE,
    PREFILL_ROLE,
    ROWS,
    ForecastRow,
    features_of,
)
from headway.routing.learned_curves import NOTHING, corrected, curves_of
from headway.routing.table import FleetRow
from predictors.latency import LatencyFeatures, LatencyModel, TargetModel
from predictors.latency.curve import Basis, Curve, Learned

REPLICAS, RAMPS = 40, 9
TTFT, TPOT, OTHERS = ForecastRow.TTFT_S, ForecastRow.TPOT_S, ForecastRow.OTHERS_TPOT_S


def curve(draw: np.random.Generator, *, has_prior: bool = True) -> Curve:
    source = np.sort(draw.integers(0, 8, RAMPS))
    scale = 10.0 ** draw.uniform(-1.0, 4.0, RAMPS)
    width = np.where(draw.random(RAMPS) < 0.3, inf, scale * draw.random(RAMPS))
    basis = Basis(source=source, start=scale * draw.random(RAMPS), width=width, has_prior=has_prior)
    return Curve(basis=basis, weights=draw.random(basis.size) * 1e-3)


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


@pytest.mark.parametrize("quantile", [False, True])
@pytest.mark.parametrize("role", [MIXED_ROLE, PREFILL_ROLE, DECODE_ROLE])
@pytest.mark.parametrize("seed", range(5))
def test_they_say_what_the_model_says(seed: int, role: int, quantile: bool) -> None:
    draw = np.random.default_rng(seed)
    model = LatencyModel(ttft=learned(draw), tpot=learned(draw))
    table, slots = fleet(draw), draw.permutation(REPLICAS)[:30]
    cached, tokens = np.floor(draw.random(30) * 900.0), 1000.0
    prior = draw.random((ROWS, 30)) + 1e-3
    prior[:, 5] = nan
    prior[TTFT, 6] = inf
    ttft, tpot = curves_of(model, quantile=quantile)
    found = corrected(role, table, slots, cached, tokens, prior, 0.25, tuple(ttft), tuple(tpot))

    inputs, wanted = inputs_of(role, table, slots, cached, tokens), prior.copy()
    wanted[TTFT] += 0.25
    for row, target, asked in ((TTFT, model.ttft, DECODE_ROLE), (TPOT, model.tpot, PREFILL_ROLE)):
        if role == asked:
            continue
        known = np.isfinite(wanted[row])
        answer = target.predict(inputs, np.where(known, wanted[row], 1.0))[quantile]
        wanted[row] = np.where(known & np.isfinite(answer), answer, wanted[row])
    wanted[OTHERS] *= wanted[TPOT] / prior[TPOT]
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    assert not np.allclose(found, prior, equal_nan=True)


def test_a_target_without_curves_keeps_its_prior() -> None:
    draw = np.random.default_rng(0)
    ttft, tpot = curves_of(LatencyModel(ttft=learned(draw), tpot=TargetModel()), quantile=False)
    assert tpot is NOTHING
    prior = draw.random((ROWS, 2))
    slots, cached = np.arange(2), np.zeros(2)
    found = corrected(MIXED_ROLE, fleet(draw), slots, cached, 10.0, prior, 0.0, tuple(ttft), tuple(tpot))
    assert (found[TTFT] != prior[TTFT]).all()
    np.testing.assert_array_equal(found[1:], prior[1:])


def test_curves_without_a_prior_go_by_the_inputs_alone() -> None:
    draw = np.random.default_rng(1)
    alone = curve(draw, has_prior=False)
    model = LatencyModel(ttft=TargetModel(learned=Learned(centre=alone, quantile=alone)), tpot=TargetModel())
    ttft, tpot = curves_of(model, quantile=False)
    table, slots, cached = fleet(draw), np.arange(3), np.zeros(3)
    found = corrected(
        MIXED_ROLE, table, slots, cached, 10.0, np.ones((ROWS, 3)), 0.0, tuple(ttft), tuple(tpot)
    )
    inputs = inputs_of(MIXED_ROLE, table, slots, cached, 10.0)
    np.testing.assert_allclose(found[TTFT], alone.at(inputs, None), rtol=1e-12)
