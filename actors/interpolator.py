"""The actor that keeps the performance model: profiles in the engines' real time, and learnt values.

Planner and routers poll `model`, which answers with a model only when it is another than the known one. A
profile that cannot be loaded is not an end: `ready` says why, and each further question tries again, so that
a directory that is mounted late is found.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from threading import Lock
from typing import Any

import numpy as np

from actors.performance_learning import PerformanceLearning
from actors.performance_model import PerformanceModel, load_profiles
from actors.store import InternalKvStore, Store
from headway.config import ConfigError, HeadwayConfig
from headway.planning import Observation
from headway.profiling.observed_latency import LatencyReport
from interp import DecodeSamples, PrefillSamples, ProfileError

logger = logging.getLogger(__name__)


class Interpolator:
    """The performance model of one deployment. `store` is for tests."""

    def __init__(self, config_json: str, store: Store | None = None) -> None:
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

    def calibrate(self, observation: Observation) -> dict[str, Any]:
        """Compare one interval with the surfaces; the ratios so far, by phase."""
        self._change(lambda learning: learning.calibrate(observation))
        return self._calibration()

    def learn(self, reports: Sequence[LatencyReport]) -> None:
        """Refine the profile by a replica's reports; nothing where that is switched off."""
        self._change(lambda learning: learning.learn(reports))

    def correct(self, corrections: Mapping[str, float]) -> None:
        """Keep the factors that a router has learnt, for the next router and for `status`."""
        self._change(lambda learning: learning.correct(corrections))

    def ready(self) -> tuple[bool, str]:
        """True if the profiles are loaded, else False and the reason."""
        return self._loaded() is not None, self._failure

    def status(self) -> dict[str, Any]:
        """Profile, versions, remarks on the tables, and everything learnt.

        `calibration_applied` is false: surfaces change by refinement alone.
        """
        model = None if self._learning is None else self._learning.model
        return {
            "profile": self._config.engine.profile,
            "time_scale": self._config.engine.time_scale,
            "version": 0 if model is None else model.version,
            "notes": [] if model is None else list(model.profile.notes),
            "calibration": self._calibration(),
            "calibration_applied": False,
            "corrections": {} if model is None else dict(model.corrections),
            "refinement": {} if self._learning is None else self._learning.refinement(),
            "failure": self._failure,
        }

    def _change(self, change: Callable[[PerformanceLearning], None]) -> None:
        if (learning := self._loaded()) is not None:
            with self._changing:
                change(learning)

    def _calibration(self) -> dict[str, Any]:
        ratios = {} if self._learning is None else self._learning.model.calibration
        return {phase.value: asdict(ratio) for phase, ratio in ratios.items()}

    def _loaded(self) -> PerformanceLearning | None:
        """The profiles and all that was learnt about them; None until they can be loaded."""
        with self._changing:
            if self._learning is None:
                try:
                    profiles = load_profiles(self._config)
                except (ConfigError, ProfileError) as error:
                    if str(error) != self._failure:
                        logger.warning("no profile: %s", error)
                    self._failure = str(error)
                    return None
                self._failure, refine = "", self._config.engine.refinement.enabled
                self._learning = PerformanceLearning(self._store, profiles, refine=refine)
            return self._learning


def _plain(samples: PrefillSamples | DecodeSamples) -> dict[str, Any]:
    return {item.name: np.asarray(getattr(samples, item.name)).tolist() for item in fields(samples)}
