"""Make the profile tables that `interp` reads: from an estimator without a GPU, or by measuring an engine.

`estimate(request)` samples an estimator's latencies, `write_estimates` writes profile directories. `sweep`
measures any engine, `recommendation` chooses tensor-parallel sizes, `comparison` holds profiles against each
other, `foreign` reads those of other systems. Errors are drawn in `headway.profiling.errors`.
"""

from headway.profiling.errors import (
    DoesNotFitError,
    EstimateError,
    ExtraNotInstalledError,
    ForeignProfileError,
    IncompleteError,
    MeasurementsError,
    NotMeasuredError,
    OutputExistsError,
    ProfilingError,
    RequestError,
    TargetError,
    UnknownNameError,
    UnmeasurableError,
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
    "ForeignProfileError",
    "IncompleteError",
    "LatencyEstimator",
    "MeasurementsError",
    "NotMeasuredError",
    "OutputExistsError",
    "ProfilingError",
    "Provenance",
    "RequestError",
    "TargetError",
    "UnknownNameError",
    "UnmeasurableError",
    "check_output",
    "estimate",
    "write_estimates",
]
