"""Latency of a newcomer at every candidate: the profile's forecast, corrected by what was learned.

The prior is `forecast`, on the state of the fleet. A trained model (`predictors.latency`) corrects it: its
curves take the features and our prior's answer; trainers are given that answer with each sample
(`learning.Sample`), so both mean the same prior. A replica whose GPU type has no surfaces (an AIBrix profile,
or none at all and no default) has NaN in all rows: no usable prediction. A correction that is not finite
counts as none.

TTFT is from now on; what a request has already waited is the caller's business. In disaggregated pools the
prefill candidates' TTFT contains the transfer and the best that the decode pool offers now, and the decode
candidates' TTFT what the chosen prefill replica takes.
"""

from collections.abc import Iterable, Mapping
from math import inf, nan
from typing import Any, Protocol

import numpy as np

from headway.config import Role
from headway.engine.rules import EngineRules
from headway.engine.surfaces import EngineSurfaces, engine_surfaces, itl_of, work_of
from headway.routing.corrections import SafetyFactor
from headway.routing.demand import CriticalDemand
from headway.routing.forecast import (
    ROLE_CODES,
    ROWS,
    Batching,
    Newcomer,
    alone,
    batch_at,
    forecast,
)
from headway.routing.learned_curves import NOTHING, corrected, curves_of
from headway.routing.records import Record
from headway.routing.table import FleetRow, FloatArray, SlotArray
from interp import Profile
from predictors.latency import LatencyModel

FIRST_STAY_S = 5.0
"""A decode's usual stay before any was seen."""

STAY_SMOOTHING = 0.02

NO_PROFILE = -1

PlainCurves = tuple[tuple[Any, ...], tuple[Any, ...]]
"""`ModelCurves`, plain."""

NO_CURVES: PlainCurves = (tuple(NOTHING), tuple(NOTHING))


class Candidates(Protocol):
    """The replicas that are asked about: of one role, for one request."""

    now_s: float
    record: Record
    role: Role
    slots: SlotArray
    further_s: float
    """Seconds of TTFT that the other role takes."""

    @property
    def cached_tokens(self) -> FloatArray:
        """Prompt tokens that each has cached, f8[C]."""


class LatencyForecaster:
    """Forecasts for one deployment. `profiles` by GPU type, "" is the default; None: it has no surfaces.

    FleetRow.KIND is a type's place among those with surfaces. Below 0 there are none: −1 where no profile is
    known, −2 and so on for each type that only has capacities, since these tell its replicas apart.
    """

    def __init__(
        self, profiles: Mapping[str, Profile | None], rules: EngineRules, *, quantile: bool = False
    ) -> None:
        self.rules, self._quantile = rules, quantile
        self._batching = Batching(float(rules.max_batch_size), float(rules.chunk_tokens))
        self.use_profiles(profiles)
        self._curves: PlainCurves | None = None
        self.stay_s = FIRST_STAY_S
        """Seconds that a request usually decodes, smoothed."""
        self.ttft_safety, self.tpot_safety = SafetyFactor(), SafetyFactor()
        """Headroom is measured with predictions times these."""
        self.joined_safety = SafetyFactor()
        """The same for `joined_s` of those that were held."""
        self.critical = CriticalDemand()
        """The critical load that was judged by these predictions."""

    def use_profiles(self, profiles: Mapping[str, Profile | None]) -> None:
        """Predict by these surfaces from now on. Kinds change: the `cells` of all replicas are set anew."""
        known = {gpu_type: profile for gpu_type, profile in profiles.items() if profile is not None}
        silent = [gpu_type for gpu_type in profiles if gpu_type not in known]
        self._kinds = {gpu_type: kind for kind, gpu_type in enumerate(known)}
        self._kinds |= {gpu_type: NO_PROFILE - place for place, gpu_type in enumerate(silent, start=1)}
        self._surfaces: list[EngineSurfaces] = [engine_surfaces(profile) for profile in known.values()]
        self.engines = [
            (tuple(surfaces.work), tuple(surfaces.itl), tuple(self._batching)) for surfaces in self._surfaces
        ]
        self._unknown = False
        """True once a replica came that has none of these surfaces."""

    def cells(self, gpu_type: str) -> Mapping[FleetRow, float]:
        """The cells of the fleet's table that a GPU type sets."""
        kind = self._kinds.get(gpu_type, self._kinds.get("", NO_PROFILE))
        capacity = self._surfaces[kind].itl.capacity_tokens if kind >= 0 else inf
        self._unknown |= kind < 0
        return {FleetRow.KIND: float(kind), FleetRow.CAPACITY_TOKENS: capacity}

    @property
    def curves(self) -> PlainCurves:
        """What was learned of TTFT and TPOT, as plain tables."""
        return self._curves or NO_CURVES

    def safety_factors(self) -> Mapping[str, SafetyFactor]:
        """The factors of predictions, by name."""
        return {"ttft": self.ttft_safety, "tpot": self.tpot_safety, "held_ttft": self.joined_safety}

    def use(self, model: LatencyModel) -> None:
        """Correct by this model from now on."""
        learned = model.ttft.learned is not None or model.tpot.learned is not None
        ttft, tpot = curves_of(model, quantile=self._quantile)
        self._curves = (tuple(ttft), tuple(tpot)) if learned else None

    def stayed(self, seconds: float) -> None:
        """A request has decoded for so long."""
        self.stay_s += STAY_SMOOTHING * (max(seconds, 1e-3) - self.stay_s)

    def ended(self, ttft_s: float, measured_ttft_s: float, tpot_s: float, measured_tpot_s: float) -> None:
        """Compare the predictions that a request was placed by with the outcome."""
        self.ttft_safety.observe(ttft_s, measured_ttft_s)
        self.tpot_safety.observe(tpot_s, measured_tpot_s)

    def shared_tpot_s(self, kind: int, sequences: float, kv_tokens: float, duty: float) -> float:
        """TPOT where `sequences` > 0 with `kv_tokens` together share a replica whose prefill duty is `duty`.

        Infinite where they do not fit, 0 where the kind has no profile.
        """
        if kind < 0:
            return 0.0
        surfaces = self._surfaces[kind]
        if sequences > self._batching.max_batch or kv_tokens > surfaces.itl.capacity_tokens or duty >= 1.0:
            return inf
        batch = max(sequences, 1.0)
        return itl_of(surfaces.itl, batch, max(kv_tokens * batch / sequences, batch)) / (1.0 - duty)

    def prompts_s(self, table: FloatArray, slot: int, prompts: float, tokens: float) -> float:
        """Seconds that so many prompts of `tokens` each keep a replica, beside its batch; 0 without a
        profile."""
        cell = table[:, slot].tolist()
        kind, chunk = int(cell[FleetRow.KIND]), self._batching.chunk_tokens
        if kind < 0 or prompts == 0.0:
            return 0.0
        surfaces, batch = self._surfaces[kind], min(batch_at(table, slot), self._batching.max_batch)
        kv_tokens = min(cell[FleetRow.KV_TOKENS] + cell[FleetRow.OTHER_TOKENS], surfaces.itl.capacity_tokens)
        iteration_s = float(surfaces.work.seconds[0])
        if batch > 0.0:
            iteration_s = itl_of(surfaces.itl, batch, max(kv_tokens, batch))
        iterations = tokens / chunk if chunk > 0.0 else 1.0
        return prompts * (work_of(surfaces.work, tokens) + iterations * iteration_s)

    def joining_s(self, table: FloatArray, slot: int, input_tokens: int) -> float:
        """Seconds from the arrival of a prompt's KV at a mixed replica to its first token (`corrections`).

        The fleet's table still counts it as coming. NaN without a profile, and where the batch or the KV has
        no room.
        """
        cell = table[:, slot].tolist()
        kind, batch = int(cell[FleetRow.KIND]), batch_at(table, slot)
        taken = cell[FleetRow.RESERVED_TOKENS] + cell[FleetRow.OTHER_TOKENS]
        if kind < 0 or batch + 1.0 > self._batching.max_batch or taken > cell[FleetRow.CAPACITY_TOKENS]:
            return nan
        surfaces, tokens = self._surfaces[kind], cell[FleetRow.KV_TOKENS] + cell[FleetRow.OTHER_TOKENS]
        beside_s = self._chunk_s(surfaces, cell[FleetRow.WAITING], cell[FleetRow.PREFILL_TOKENS])
        own_s = itl_of(surfaces.itl, batch + 1.0, tokens + input_tokens) + beside_s
        if batch > 0.0:
            return own_s + 0.5 * (itl_of(surfaces.itl, batch, max(tokens, batch)) + beside_s)
        return own_s + (0.5 * (float(surfaces.work.seconds[0]) + beside_s) if beside_s > 0.0 else 0.0)

    def _chunk_s(self, surfaces: EngineSurfaces, waiting: float, tokens: float) -> float:
        """Work that prompts of `tokens` together add to an iteration now."""
        if waiting == 0.0:
            return 0.0
        return work_of(surfaces.work, min(tokens, self._batching.chunk_tokens or tokens / waiting))

    def rows(self, asked: Candidates, table: FloatArray) -> FloatArray:
        """The forecast, f8[ROWS, C]; what belongs to the request's other role is not in it."""
        out = np.empty((ROWS, len(asked.slots)))
        if self._unknown or len(self._surfaces) != 1:
            # Candidates of another kind, or of none, are passed over by `forecast`.
            out.fill(np.nan)
        newcomer = tuple(self._newcomer(asked))
        role, cached = ROLE_CODES[asked.role], asked.cached_tokens
        for kind, engine in enumerate(self.engines):
            forecast(role, table, asked.slots, cached, kind, (newcomer, *engine), out)
        return out

    def corrected(self, asked: Candidates, prior: FloatArray, table: FloatArray) -> FloatArray:
        """`prior` with what else TTFT contains, corrected by the model if there is one."""
        curves = self._curves
        if curves is None and asked.further_s == 0.0:
            return prior
        ttft, tpot = NO_CURVES if curves is None else curves
        return corrected(
            ROLE_CODES[asked.role],
            table,
            asked.slots,
            asked.cached_tokens,
            float(asked.record.request.input_tokens),
            prior,
            asked.further_s,
            ttft,
            tpot,
        )

    def alone_s(self, asked: Candidates, kinds: Iterable[int]) -> tuple[float, float]:
        """One role's part of TTFT and TPOT at an idle replica, the best of `kinds`; infinite without any."""
        newcomer, cached = tuple(self._newcomer(asked)), asked.cached_tokens
        uncached = asked.record.request.input_tokens - (float(cached.max()) if len(cached) else 0.0)
        best = [
            alone(ROLE_CODES[asked.role], uncached, (newcomer, *self.engines[kind]))
            for kind in kinds
            if kind >= 0
        ]
        return min((ttft for ttft, _ in best), default=inf), min((tpot for _, tpot in best), default=inf)

    def _newcomer(self, asked: Candidates) -> Newcomer:
        record = asked.record
        return Newcomer(
            asked.now_s, float(record.request.input_tokens), float(record.expected_output), self.stay_s
        )
