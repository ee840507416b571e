"""A learned model as plain data (for JSON), and back. Priors are functions and travel apart from it."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from predictors.errors import ArgumentError
from predictors.latency.basis import Basis
from predictors.latency.curve import Curve, Learned
from predictors.latency.features import INPUTS, FloatArray
from predictors.latency.model import LatencyModel, Prior, Priors, TargetModel
from predictors.latency.samples import Target

FORMAT = 1


def model_to_dict(model: LatencyModel) -> dict[str, Any]:
    """The learned parts as numbers, lists and names; `json.dumps` takes it."""
    learned = {target.value: _learned_to_dict(model.of(target).learned) for target in Target}
    return {"format": FORMAT, "level": model.level, "inputs": list(INPUTS), "learned": learned}


def model_from_dict(data: Mapping[str, Any], priors: Priors) -> LatencyModel:
    """The model whose `model_to_dict` this is, over `priors`.

    Raises:
        ArgumentError: another format, other inputs, broken numbers, or a prior that is needed and not given.
    """
    try:
        if data["format"] != FORMAT or tuple(data["inputs"]) != INPUTS:
            raise ArgumentError("latency model: written by another version")
        level = float(data["level"])
        parts = {target: _target(data["learned"][target.value], priors.of(target)) for target in Target}
    except (KeyError, TypeError, ValueError) as error:
        raise ArgumentError(f"latency model: cannot be read: {error!r:.120}") from error
    return LatencyModel(ttft=parts[Target.TTFT], tpot=parts[Target.TPOT], level=level)


def _learned_to_dict(learned: Learned | None) -> dict[str, Any] | None:
    if learned is None:
        return None
    return {
        "centre": _curve_to_dict(learned.centre),
        "quantile": _curve_to_dict(learned.quantile),
        "factor": learned.factor,
    }


def _curve_to_dict(curve: Curve) -> dict[str, Any]:
    width = [None if math.isinf(width) else width for width in curve.basis.width.tolist()]
    return {
        "source": curve.basis.source.tolist(),
        "start": curve.basis.start.tolist(),
        "width": width,
        "has_prior": curve.basis.has_prior,
        "weights": curve.weights.tolist(),
    }


def _target(data: Mapping[str, Any] | None, prior: Prior | None) -> TargetModel:
    if data is None:
        return TargetModel(prior=prior)
    learned = Learned(
        centre=_curve(data["centre"]),
        quantile=_curve(data["quantile"]),
        factor=float(_sound(data["factor"])),
    )
    if prior is None and (learned.centre.basis.has_prior or learned.quantile.basis.has_prior):
        raise ArgumentError("latency model: a curve needs the prior that it was fitted over")
    return TargetModel(prior=prior, learned=learned)


def _curve(data: Mapping[str, Any]) -> Curve:
    basis = Basis(
        source=np.array(data["source"], dtype=np.intp),
        start=_sound(data["start"]),
        width=np.array([math.inf if width is None else width for width in data["width"]], dtype=np.float64),
        has_prior=bool(data["has_prior"]),
    )
    weights, ramps = _sound(data["weights"]), (len(basis.source),)
    fits = basis.start.shape == basis.width.shape == ramps and weights.shape == (basis.size,)
    known = (basis.source >= 0) & (basis.source < len(INPUTS))
    if not fits or not known.all() or not (basis.width > 0.0).all():
        raise ArgumentError("latency model: the parts of a curve do not fit together")
    return Curve(basis=basis, weights=weights)


def _sound(values: npt.ArrayLike) -> FloatArray:
    array = np.array(values, dtype=np.float64)
    if not (np.isfinite(array) & (array >= 0.0)).all():
        raise ValueError("a number that is negative or not finite")
    return array
