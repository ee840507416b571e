"""The actor that has the performance profile: its surfaces, in real time of the engines, and their
calibration, and where settings say so their refinement by what replicas report.

A profile that cannot be loaded is not an end: `ready` says why, and each further question tries again, so
that a directory that is mounted late is found. The version is a checksum of what the surfaces are made from:
equal after a restart, another when the profile, the engine's time scale or what traffic taught is. The
calibration is relative to the profile that is served and begins anew with each, so that no slowness counts
twice.
"""

import logging
import zlib
from collections.abc import Sequence
from dataclasses import fields
from threading import Lock
from typing import Any

import numpy as np

from actors.store import InternalKvStore, Store
from actors.surfaces.calibration import Calibration
from actors.surfaces.refining import Refining
from headway.config import ConfigError, HeadwayConfig
from headway.engine import engine_profile
from headway.planning import Observation
from headway.profiling.observed_latency import LatencyReport
from interp import DecodeSamples, PrefillSamples, Profile, ProfileError

logger = logging.getLogger(__name__)


class Interpolator:
    """Surfaces and calibration. `store` is for tests."""

    def __init__(self, config_json: str, store: Store | None = None) -> None:
        self._config = HeadwayConfig.model_validate_json(config_json)
        self._store = InternalKvStore() if store is None else store
        self._profile: Profile | None = None
        self._version = 0
        self._calibration: Calibration | None = None
        self._refining: Refining | None = None
        self._learning = Lock()
        self._failure = ""
        self._load()

    def surfaces(self, known: int = -1) -> tuple[int, Profile | None]:
        """Version and profile; no profile when the caller knows that version, or when there is none (0)."""
        self._load()
        return self._version, None if self._version == known else self._profile

    def document(self) -> dict[str, Any]:
        """The profile as plain data: its samples in seconds and tokens, `meta`; {} without a profile."""
        self._load()
        if self._profile is None:
            return {}
        prefill, decode = self._profile.prefill.samples, self._profile.decode.samples
        return {"prefill": _plain(prefill), "decode": _plain(decode), "meta": dict(self._profile.meta)}

    def calibrate(self, observation: Observation) -> dict[str, Any]:
        """Compare one interval with the surfaces; how they compare so far."""
        self._load()
        if self._profile is None or self._calibration is None:
            return {}
        self._calibration.take(observation, self._profile)
        return self._calibration.document()

    def learn(self, reports: Sequence[LatencyReport]) -> None:
        """Refine the profile by what a replica saw; nothing where that is switched off."""
        self._load()
        if self._refining is None:
            return
        with self._learning:
            if self._refining.learn(reports):
                self._serve(self._refining.profile)

    def ready(self) -> tuple[bool, str]:
        """Whether the profile is loaded; if not, why not."""
        self._load()
        return self._profile is not None, self._failure

    def status(self) -> dict[str, Any]:
        """Profile, version, remarks on the tables, refinement, calibration; `applied` is false: see there."""
        return {
            "profile": self._config.engine.profile,
            "time_scale": self._config.engine.time_scale,
            "version": self._version,
            "notes": [] if self._profile is None else list(self._profile.notes),
            "calibration": {} if self._calibration is None else self._calibration.document(),
            "calibration_applied": False,
            "refinement": {} if self._refining is None else self._refining.document(),
            "failure": self._failure,
        }

    def _load(self) -> None:
        if self._profile is not None:
            return
        try:
            measured = engine_profile(self._config)
        except (ConfigError, ProfileError) as error:
            if str(error) != self._failure:
                logger.warning("no profile: %s", error)
            self._failure = str(error)
            return
        self._failure = ""
        if self._config.engine.refinement.enabled:
            self._refining = Refining(self._store, _version(measured), measured)
        self._serve(measured if self._refining is None else self._refining.profile)

    def _serve(self, profile: Profile) -> None:
        version = _version(profile)
        self._calibration = Calibration(self._store, version)
        self._profile, self._version = profile, version


def _version(profile: Profile) -> int:
    """A checksum of the samples and of what bounds them, never 0."""
    prefill, decode = profile.prefill, profile.decode
    bounds = (prefill.gpus_per_engine, decode.gpus_per_engine, decode.largest_batch)
    checksum = zlib.crc32(np.array(bounds, np.float64).tobytes())
    for samples in (prefill.samples, decode.samples):
        checksum = zlib.crc32(_bytes(samples), checksum)
    return checksum or 1


def _plain(samples: PrefillSamples | DecodeSamples) -> dict[str, Any]:
    return {item.name: np.asarray(getattr(samples, item.name)).tolist() for item in fields(samples)}


def _bytes(samples: PrefillSamples | DecodeSamples) -> bytes:
    return b"".join(np.asarray(getattr(samples, item.name)).tobytes() for item in fields(samples))
