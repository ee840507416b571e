"""Make the profile tables that `interp` reads: from an estimator, without a GPU.

`estimate(request)` samples an engine's latencies, `write_estimates` writes profile directories. Errors are
drawn in `headway.profiling.errors`.
"""

from headway.profiling.errors import (
    DoesNotFitError,
    EstimateError,
    ExtraNotInstalledError,
    NotMeasuredError,
    OutputExistsError,
    ProfilingError,
    RequestError,
    UnknownNameError,
)
from headway.profiling.estimate import estimate
from headway.profiling.estimator import EngineFacts, EngineSpec, LatencyEstimator, Provenance
from headway.profiling.request import EstimatedProfile, EstimateRequest, Estimates
from headway.profiling.writing import check_output, write_estimates

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
    "OutputExistsError",
    "ProfilingError",
    "Provenance",
    "RequestError",
    "UnknownNameError",
    "check_output",
    "estimate",
    "write_estimates",
]
