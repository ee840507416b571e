"""Estimated profiles: the tables that `interp` reads, without a GPU.

`estimate(request)` samples an estimator's step latencies on grids, `write_estimates` writes profile
directories. `request` has the values, the errors and the interface of an estimator; `aiconfigurator` is the
one over AI Configurator, whose names and quirks are in `library`.
"""

from headway_studies.estimator.estimate import check_output, estimate, write_estimates
from headway_studies.estimator.request import (
    DoesNotFitError,
    EngineFacts,
    EngineSpec,
    EstimatedProfile,
    EstimateError,
    EstimateRequest,
    Estimates,
    ExtraNotInstalledError,
    LatencyEstimator,
    NotMeasuredError,
    Provenance,
    UnknownNameError,
)

__all__ = [
    "DoesNotFitError",
    "EngineFacts",
    "EngineSpec",
    "EstimateError",
    "EstimateRequest",
    "EstimatedProfile",
    "Estimates",
    "ExtraNotInstalledError",
    "LatencyEstimator",
    "NotMeasuredError",
    "Provenance",
    "UnknownNameError",
    "check_output",
    "estimate",
    "write_estimates",
]
