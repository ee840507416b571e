"""The one performance model of a deployment: its profiles, and values learnt from traffic about them.

The Interpolator keeps it and serves it to planner, routers and `status`:

    profiles       by GPU type, "" the deployment's own, refined by the replicas' reports where that is on
    calibration    measured over expected latency of each phase, for people and for policies
    corrections    factors by which the router multiplies its predictions; the next router starts with them
    differing      replicas that are slower or faster than their peers, for the plan (`replica_speeds`)

Only refinement changes the surfaces; the ratios and factors stand beside them.

A router follows the model (`ModelFollower`): every PERIOD_S it asks for the newest one, and goes by other
profiles at once. Corrections come from the first model after the router began, when it has learnt nothing of
its own; from then on its own are reported whenever one has moved by more than REPORTED. An Interpolator that
does not answer changes nothing: the router goes on with what it has.

A router's corrections and its latency model stretch the surfaces on which they were learnt. Where surfaces
differ from those by more than MATERIAL, both begin anew, so that no slowness counts twice.
"""

import asyncio
import json
import logging
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from actors.names import CallError, NamedActor
from headway.config import HeadwayConfig
from headway.engine import engine_profile
from headway.engine.nearest import Told
from headway.engine.replica_speeds import DifferingReplicas
from headway.planning import Role
from interp import DecodeSamples, PrefillSamples, Profile

if TYPE_CHECKING:
    from headway.routing.fleet.gpu_profiles import GpuProfile
    from headway.routing.router import Router


PERIOD_S = 1.0
TIMEOUT_S = 10.0
REPORTED = 0.01
"""Relative change of a correction that is worth a report."""
MATERIAL = 0.1
"""Logarithmic change of a latency from which on learning begins anew."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyRatio:
    """Measured over expected: smoothed, last, and of how many intervals. `details`: the last computation."""

    smoothed: float = 1.0
    last: float | None = None
    count: int = 0
    at_s: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PerformanceModel:
    """Profiles and learnt values. Versions are checksums: equal after a restart, and never 0.

    `profiles_version` changes with the profiles, `version` with anything.
    """

    version: int
    profiles_version: int
    profiles: Mapping[str, "GpuProfile"]
    calibration: Mapping[Role, LatencyRatio] = field(default_factory=dict)
    corrections: Mapping[str, float] = field(default_factory=dict)
    differing: DifferingReplicas = field(default_factory=dict)

    @property
    def profile(self) -> Profile:
        """The deployment's own profile."""
        return own_profile(self.profiles)


def load_profiles(config: HeadwayConfig, told: Told = Told()) -> "dict[str, GpuProfile]":  # noqa: B008
    """The profiles that the settings name, as measured; without one an estimate by what engines have `told`.

    ConfigError or ProfileError, each one line.
    """
    # Here, since the planner reads models and needs nothing of routing.
    from headway.routing.fleet.gpu_profiles import named_profiles

    return {"": engine_profile(config, told), **named_profiles(config)}


def own_profile(profiles: "Mapping[str, GpuProfile]") -> Profile:
    """The deployment's own profile, which always has surfaces."""
    own = profiles[""]
    assert isinstance(own, Profile), own
    return own


def performance_model(
    profiles: "Mapping[str, GpuProfile]",
    calibration: Mapping[Role, LatencyRatio] | None = None,
    corrections: Mapping[str, float] | None = None,
    differing: DifferingReplicas | None = None,
) -> PerformanceModel:
    """The model of these parts, with its versions."""
    profiles_version = checksum(profiles)
    learnt = [{role: asdict(ratio) for role, ratio in (calibration or {}).items()}, dict(corrections or {})]
    learnt += [{role: [*map(asdict, each)]} for role, each in (differing or {}).items()]
    return PerformanceModel(
        version=zlib.crc32(json.dumps(learnt).encode(), profiles_version) or 1,
        profiles_version=profiles_version,
        profiles=profiles,
        calibration=calibration or {},
        corrections=corrections or {},
        differing=differing or {},
    )


def largest_change(before: Profile, after: Profile) -> float:
    """The largest |ln(after / before)| of TTFT and ITL at the samples of `before`, and of the limits."""
    isl_tokens, decode = before.prefill.samples.isl_tokens, before.decode.samples
    held = float(before.decode.table.max_kv_tokens) / float(after.decode.table.max_kv_tokens)
    places = (decode.kv_usage, decode.context_tokens)
    ratios = (
        after.prefill.ttft_s(isl_tokens) / before.prefill.ttft_s(isl_tokens),
        after.decode.itl_s(np.minimum(1.0, decode.kv_usage * held), decode.context_tokens)
        / before.decode.itl_s(*places),
        np.array([held, after.decode.largest_batch / before.decode.largest_batch]),
    )
    return max(float(np.abs(np.log(ratio)).max()) for ratio in ratios)


def checksum(profiles: "Mapping[str, GpuProfile]") -> int:
    """A checksum of the samples and of their bounds."""
    total = 0
    for gpu_type, profile in profiles.items():
        total = zlib.crc32(gpu_type.encode(), total)
        if isinstance(profile, Profile):
            prefill, decode = profile.prefill, profile.decode
            bounds = (prefill.gpus_per_engine, decode.gpus_per_engine, decode.largest_batch)
            samples = _sample_bytes(prefill.samples) + _sample_bytes(decode.samples)
            total = zlib.crc32(np.array(bounds, np.float64).tobytes() + samples, total)
        else:
            total = zlib.crc32(repr(profile).encode(), total)
    return total or 1


def _sample_bytes(samples: PrefillSamples | DecodeSamples) -> bytes:
    return b"".join(np.asarray(getattr(samples, item.name)).tobytes() for item in fields(samples))


class ModelFollower:
    """The link of one router to the Interpolator. The router begins with `profiles`."""

    def __init__(
        self, router: "Router", profiles: "Mapping[str, GpuProfile]", interpolator: NamedActor
    ) -> None:
        self._router, self._interpolator = router, interpolator
        self._learnt_on = own_profile(profiles)
        self.profiles_version = self.basis = checksum(profiles)
        """The profiles in use, and those on which the router has begun to learn."""
        self.version = 0
        """Version of the model in use, 0 before the first."""
        self._initial = self._reported = dict(router.corrections)
        self._failure = ""

    async def run(self, period_s: float = PERIOD_S) -> None:
        """Follow until cancelled."""
        while True:
            try:
                await self.step()
                self._failure = ""
            except CallError as error:
                if str(error) != self._failure:
                    logger.warning("the performance model stays as it is: %s", error)
                self._failure = str(error)
            except Exception as error:
                # An error of the Interpolator's own, which comes again with each question: logged once.
                if str(error) != self._failure:
                    logger.exception("the performance model cannot be used")
                self._failure = str(error)
            await asyncio.sleep(period_s)

    async def step(self) -> None:
        """Take the newest model, and report what has been learnt meanwhile."""
        model = await self._interpolator.call("model", self.version, timeout_s=TIMEOUT_S)
        if model is not None:
            self._take(model)
        corrections = dict(self._router.corrections)
        reported = self._reported
        if self.version and any(
            # GPU types come and go with the profiles, and their factors with them.
            name not in reported or abs(factor - reported[name]) > REPORTED * reported[name]
            for name, factor in corrections.items()
        ):
            await self._interpolator.call("correct", corrections, timeout_s=TIMEOUT_S)
            self._reported = corrections

    def _take(self, model: PerformanceModel) -> None:
        if model.profiles_version != self.profiles_version:
            self._router.use_profiles(model.profiles)
            self.profiles_version = model.profiles_version
            if largest_change(self._learnt_on, model.profile) > MATERIAL:
                self._begin_anew(model)
        if not self.version:
            self._router.use_corrections(model.corrections)
            self._reported = dict(self._router.corrections)
        self.version = model.version

    def _begin_anew(self, model: PerformanceModel) -> None:
        # Here, since the planner reads models and needs no latency prediction.
        from predictors.latency import Priors, cold_model

        # How long a transfer takes is no matter of the surfaces.
        fresh = {name: factor for name, factor in self._initial.items() if name != "transfer"}
        self._router.use_corrections(fresh)
        self._router.use_model(cold_model(Priors()))
        self._router.take_samples()
        self._learnt_on, self.basis = model.profile, model.profiles_version
