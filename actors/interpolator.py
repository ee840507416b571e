"""The actor that keeps the performance model: profiles in the engines' real time, and learnt values.

Planner and routers poll `model`, which answers with a model only when it is another than the known one. A
profile that cannot be loaded is not an end: `ready` says why, and each further question tries again, so that
a directory that is mounted late is found.

Traffic corrects measured profiles (`PerformanceLearning`):

    refinement     replicas' reports change the surfaces (`headway.engine.refinement`). The served profile
                   changes only where a surface has moved by more than 2 %: policies are made anew with each
                   profile
    calibration    ratio     = measured mean / the served profile's value at the measured point
                   smoothed' = (1 - w) smoothed + w ratio            w = 0.2; the first ratio as it is
                   Above 1 the deployment is slower than its profile: queueing, noise, or another engine
    replicas       those slower or faster than their peers are told apart (`engine.replica_speeds`), and what
                   they report does not count for the surfaces
    corrections    the factors that a router has learnt, as it reports them

All are in the store after each change, refinement within STORE_S. Refinement and corrections belong to the
measured profile, calibration to the served one, so that no slowness counts twice; another profile begins
anew.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from threading import Lock
from typing import Any, TypeVar

import numpy as np

from actors.performance_model import (
    LatencyRatio,
    PerformanceModel,
    checksum,
    load_profiles,
    own_profile,
    performance_model,
)
from actors.store import InternalKvStore, Store
from actors.stored import Kind, keep, put, read
from headway.config import ConfigError, HeadwayConfig
from headway.engine.nearest import Told, gpu_of
from headway.engine.observed_latency import LatencyReport
from headway.engine.observed_limits import with_kv_tokens
from headway.engine.observed_metrics import EngineReading, LengthSpread, engine_reports, of_one_gpu
from headway.engine.refinement import Refinement, Seen, corrections, learn, moved, refined, with_limits
from headway.engine.replica_speeds import Lengths, ReplicaWatch
from headway.engine.rules import MIXED_CHUNK_TOKENS
from headway.planning import Observation, Role
from headway.planning.sizing import Correction, correct_decode, correct_prefill
from headway.routing.fleet.gpu_profiles import GpuProfile
from interp import DecodeSamples, PrefillSamples, Profile, ProfileError

logger = logging.getLogger(__name__)

T = TypeVar("T")

REFINEMENT, CALIBRATION = "interpolator/refinement", "interpolator/calibration"
TOLD = "interpolator/told"
"""What engines say of themselves, where there is no profile."""
CORRECTIONS = "interpolator/corrections"
KIND, TOLD_KIND = Kind("learnt", dict[str, Any]), Kind("told", Told)
WEIGHT = 0.2
STORE_S = 5.0
"""Seconds between two writes of the refinement, where the served profile stays: every replica reports."""
FORGOTTEN_S = 3600.0
"""Seconds after which it is not known any more until when an engine's readings have been taken."""
PHASES = (Role.PREFILL, Role.DECODE)


class PerformanceLearning:
    """The model of measured `profiles`, and its changes. Not for several threads at once.

    Surfaces change only with a `watch` on the replicas.
    """

    def __init__(self, store: Store, profiles: Mapping[str, GpuProfile], watch: ReplicaWatch | None) -> None:
        self._store, self._profiles, self._measured = store, dict(profiles), checksum(profiles)
        self._watch = watch
        self._refining = None if watch is None else _Refining(store, own_profile(profiles))
        self._corrections: Mapping[str, float] = _restored(
            store, CORRECTIONS, self._measured, lambda stored: _factors(stored["factors"]), {}
        )
        self._seen_s: dict[str, float] = {}
        self.model = self._served()

    def learn(self, reports: Sequence[LatencyReport], now_s: float, replica: str = "") -> Mapping[str, float]:
        """Refine the profile by a replica's reports; nothing where that is switched off.

        The answer is what the replica shall say of itself (`ReplicaWatch.standing`).
        """
        if self._refining is None or self._watch is None:
            return {}
        typical = self._watch.take(reports, replica, self._refining.known, now_s)
        if self._refining.learn(typical, now_s):
            self.model = self._served()
        elif self._watch.differing() != self.model.differing:
            self.model = self._model(self.model.calibration)
        return self._watch.standing(replica, self.model.profile)

    def see(
        self,
        readings: Iterable[EngineReading],
        lengths: LengthSpread,
        chunk_tokens: int,
        now_s: float,
    ) -> None:
        """Refine the profile by what engines show of themselves; of intervals that overlap once."""
        if self._refining is None:
            return
        fresh = [each for each in readings if each.begun_s >= self._seen_s.get(each.engine, -math.inf)]
        known = {engine: at_s for engine, at_s in self._seen_s.items() if at_s > now_s - FORGOTTEN_S}
        self._seen_s = known | {each.engine: each.ended_s for each in fresh}
        if self._refining.limit(fresh, chunk_tokens):
            self.model = self._served()
        self.learn(list(engine_reports(self.model.profile, fresh, lengths, chunk_tokens)), now_s)

    def calibrate(self, observation: Observation) -> None:
        """Compare an interval with the surfaces; one seen before, or without figures, changes nothing."""
        if self._watch is not None:
            self._watch.observe(Lengths(observation.isl_tokens, observation.osl_tokens))
        ratios = _ratios(self.model.calibration, observation, self.model.profile)
        if ratios != self.model.calibration:
            document = {phase.value: asdict(ratio) for phase, ratio in ratios.items()}
            _keep(self._store, CALIBRATION, self.model.profiles_version, ratios=document)
            self.model = self._model(ratios)

    def correct(self, corrections: Mapping[str, float]) -> None:
        """Keep the factors that a router has learnt."""
        if (factors := _factors(corrections)) != self._corrections:
            _keep(self._store, CORRECTIONS, self._measured, factors=factors)
            self._corrections = factors
            self.model = self._model(self.model.calibration)

    def _served(self) -> PerformanceModel:
        if self._refining is not None:
            self._profiles[""] = self._refining.profile
        served = checksum(self._profiles)
        none = dict.fromkeys(PHASES, LatencyRatio())

        def decode(stored: Mapping[str, Any]) -> Mapping[Role, LatencyRatio]:
            return {phase: LatencyRatio(**stored["ratios"][phase.value]) for phase in PHASES}

        ratios: Mapping[Role, LatencyRatio] = _restored(self._store, CALIBRATION, served, decode, none)
        return self._model(ratios)

    def _model(self, ratios: Mapping[Role, LatencyRatio]) -> PerformanceModel:
        differing = None if self._watch is None else self._watch.differing()
        return performance_model(dict(self._profiles), ratios, self._corrections, differing)


class _Refining:
    """The refinement of the deployment's own profile as measured. `profile` is the one to serve."""

    def __init__(self, store: Store, measured: Profile) -> None:
        self._store, self._version, self._measured = store, checksum({"": measured}), measured
        """As measured; reports are held against `_base`, which has the KV cache that engines show."""
        self._learnt = self._served = _restored(
            store, REFINEMENT, self._version, Refinement.restored, Refinement()
        )
        self._base = with_kv_tokens(measured, self._learnt.limits.kv_tokens)
        self.profile = refined(self._base, self._served)
        self._stored_s = -math.inf

    def limit(self, readings: Iterable[EngineReading], chunk_tokens: int) -> bool:
        """Take what engines show of their limits; True if there is another profile to serve."""
        known, profiled = self._learnt.limits, float(self._measured.decode.table.max_kv_tokens)
        learnt = with_limits(self._learnt, known.with_readings(readings, chunk_tokens, profiled))
        if learnt.limits.kv_tokens != known.kv_tokens:
            self._base = with_kv_tokens(self._measured, learnt.limits.kv_tokens)
        self._learnt = learnt
        if learnt.limits.known == known.known:
            return False
        _keep(self._store, REFINEMENT, self._version, **learnt.document())
        self._served, self.profile = learnt, refined(self._base, learnt)
        return True

    def learn(self, seen: Seen, now_s: float) -> bool:
        """Take reports; True if there is another profile to serve."""
        learnt = learn(self._learnt, seen, now_s)
        if learnt is self._learnt:
            return False
        self._learnt = learnt
        changed = moved(corrections(self._base, self._served), corrections(self._base, learnt))
        if changed or now_s - self._stored_s >= STORE_S:
            _keep(self._store, REFINEMENT, self._version, **learnt.document())
            self._stored_s = now_s
        if not changed:
            return False
        self._served, self.profile = learnt, refined(self._base, learnt)
        return True

    @property
    def known(self) -> tuple[Refinement, Profile]:
        """What was learnt so far, and the profile that it corrects."""
        return self._learnt, self._base


def _ratios(
    before: Mapping[Role, LatencyRatio], observation: Observation, profile: Profile
) -> Mapping[Role, LatencyRatio]:
    """The ratios with one more interval."""
    lengths = Lengths(isl_tokens=observation.isl_tokens, osl_tokens=observation.osl_tokens)
    pools = observation.pools
    decoding = replace(observation, pools={Role.DECODE: pools.get(Role.DECODE) or pools[Role.MIXED]})
    corrections = {
        Role.PREFILL: correct_prefill(observation, lengths, 1.0, profile.prefill),
        Role.DECODE: correct_decode(decoding, lengths, 1.0, profile.decode),
    }
    return {
        phase: ratio
        if corrections[phase].basis != "measured" or ratio.at_s == observation.now_s
        else _with_measured(ratio, corrections[phase], observation.now_s)
        for phase, ratio in before.items()
    }


def _with_measured(ratio: LatencyRatio, correction: Correction, at_s: float) -> LatencyRatio:
    last = correction.value
    smoothed = last if ratio.count == 0 else (1 - WEIGHT) * ratio.smoothed + WEIGHT * last
    return LatencyRatio(
        smoothed=smoothed, last=last, count=ratio.count + 1, at_s=at_s, details=correction.details
    )


def _keep(store: Store, key: str, profile: int, **learnt: object) -> None:
    keep(store, KIND, key, {"profile": profile, **learnt})


def _restored(store: Store, key: str, profile: int, decode: Callable[[Any], T], otherwise: T) -> T:
    """The value stored for the profile with this checksum; `otherwise` if there is none to be read."""

    def use(stored: Mapping[str, Any]) -> T:
        return decode(stored) if stored["profile"] == profile else otherwise

    found = read(store, KIND, key, use)
    return otherwise if found is None else found


def _factors(corrections: Mapping[str, float]) -> dict[str, float]:
    return {str(name): float(factor) for name, factor in corrections.items()}


class Interpolator:
    """The performance model of one deployment. `store` and `clock` are for tests."""

    def __init__(
        self, config_json: str, store: Store | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._config = HeadwayConfig.model_validate_json(config_json)
        self._store = InternalKvStore() if store is None else store
        self._learning: PerformanceLearning | None = None
        self._failure = ""
        # Calls come in several threads, but changes happen one at a time.
        self._changing = Lock()
        self._loaded()

    def model(self, known: int = 0) -> PerformanceModel | None:
        """The model; None if `known` is its version, or if there is no profile yet."""
        learning = self._loaded()
        return None if learning is None or learning.model.version == known else learning.model

    def document(self) -> dict[str, Any]:
        """The deployment's own profile as plain data: samples in seconds and tokens, `meta`; {} if none."""
        learning = self._loaded()
        if learning is None:
            return {}
        profile = learning.model.profile
        prefill, decode = _plain(profile.prefill.samples), _plain(profile.decode.samples)
        return {"prefill": prefill, "decode": decode, "meta": dict(profile.meta)}

    def calibrate(
        self,
        observation: Observation,
        engines: Sequence[EngineReading] = (),
        lengths: LengthSpread | None = None,
    ) -> None:
        """Compare one interval with the surfaces, then correct these by what engines show of themselves.

        Engines that are started by us report themselves: what they show besides counts for nothing.
        """

        def change(learning: PerformanceLearning) -> None:
            learning.calibrate(observation)
            if engines and lengths is not None and self._config.engine.kind == "external":
                chunk_tokens = self._config.engine.chunk_tokens or MIXED_CHUNK_TOKENS
                alike = of_one_gpu(engines, gpu_of(self._config.engine.gpu_type or ""))
                learning.see(alike, lengths, chunk_tokens, self._clock())

        self._change(change)

    def learn(self, reports: Sequence[LatencyReport], replica: str = "") -> Mapping[str, float]:
        """Refine the profile by a replica's reports; nothing where that is switched off.

        The answer is what the replica shall say of itself beside its load; empty for one like the others.
        """
        standing: Mapping[str, float] = {}

        def change(learning: PerformanceLearning) -> None:
            nonlocal standing
            standing = learning.learn(reports, self._clock(), replica)

        self._change(change)
        return standing

    def correct(self, corrections: Mapping[str, float]) -> None:
        """Keep the factors that a router has learnt, for the next router and for `status`."""
        self._change(lambda learning: learning.correct(corrections))

    def tell(self, told: Told) -> None:
        """Have what engines say of themselves; it counts where the settings name no profile."""
        if self._config.engine.profile is None and any(told):
            with self._changing:
                if self._told() != told:
                    put(self._store, TOLD_KIND, TOLD, told)
                    self._learning = None

    def ready(self) -> tuple[bool, str]:
        """True if the profiles are loaded, else False and the reason."""
        return self._loaded() is not None, self._failure

    def _told(self) -> Told:
        return read(self._store, TOLD_KIND, TOLD, Told._make) or Told()

    def _change(self, change: Callable[[PerformanceLearning], None]) -> None:
        if (learning := self._loaded()) is not None:
            with self._changing:
                change(learning)

    def _loaded(self) -> PerformanceLearning | None:
        """The profiles and all that was learnt about them; None until they can be loaded."""
        with self._changing:
            if self._learning is None:
                try:
                    profiles = load_profiles(self._config, self._told())
                except (ConfigError, ProfileError) as error:
                    if str(error) != self._failure:
                        logger.warning("no profile: %s", error)
                    self._failure = str(error)
                    return None
                self._failure = ""
                watch = ReplicaWatch(self._config) if self._config.engine.refinement.enabled else None
                self._learning = PerformanceLearning(self._store, profiles, watch)
            return self._learning


def _plain(samples: PrefillSamples | DecodeSamples) -> dict[str, Any]:
    return {item.name: np.asarray(getattr(samples, item.name)).tolist() for item in fields(samples)}
