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
from typing import Protocol

import numpy as np

from headway.config import Role
from headway.engine.rules import EngineRules
from headway.engine.surfaces import EngineSurfaces, engine_surfaces, itl_of, work_of
from headway.routing.fleet.records import Record
from headway.routing.fleet.table import ROLE_CODES, FleetRow, FloatArray, SlotArray
from headway.routing.predict.corrections import LEVEL, CriticalDemand, ReplicaSafety, SafetyFactor
from headway.routing.predict.evidence import EXPIRED, Evidence
from headway.routing.predict.forecast import ROWS, Batching, ForecastRow, alone, batch_at, forecast
from headway.routing.predict.learned_curves import NO_CURVE, ModelCurves, corrected, curves_of
from interp import Profile
from interp.jit import compiled
from predictors.latency import LatencyModel

STAY_SMOOTHING, FIRST_STAY_S = 0.02, 5.0

NO_PROFILE = -1

NO_CURVES = ModelCurves(NO_CURVE, NO_CURVE)


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
        self, profiles: Mapping[str, Profile | None], rules: EngineRules, level: float = LEVEL
    ) -> None:
        """`level` is that of safety (`corrections`)."""
        self._level = level
        self._batching = Batching(float(rules.max_batch_size), float(rules.chunk_tokens))
        self._safety = {"": (SafetyFactor(level), SafetyFactor(level))}
        self._kinds: dict[str, int] = {}
        self.evidence = Evidence(0)
        """What outcomes say of predictions for each kind."""
        self.use_profiles(profiles)
        self.curves = NO_CURVES
        """What was learned of TTFT and TPOT, as plain tables."""
        self.critical = CriticalDemand()
        self.stay_s = FIRST_STAY_S
        """How long requests decode, smoothed."""
        self.prompt_s = 0.0
        """How long it takes from a placement until the prompt is computed, smoothed."""

    def use_profiles(self, profiles: Mapping[str, Profile | None]) -> None:
        """Predict by these surfaces from now on. Kinds change: the `cells` of all replicas are set anew."""
        before = self._kinds
        known = {gpu_type: profile for gpu_type, profile in profiles.items() if profile is not None}
        silent = [gpu_type for gpu_type in profiles if gpu_type not in known]
        self._kinds = {gpu_type: kind for kind, gpu_type in enumerate(known)}
        self._kinds |= {gpu_type: NO_PROFILE - place for place, gpu_type in enumerate(silent, start=1)}
        self._surfaces: list[EngineSurfaces] = [engine_surfaces(profile) for profile in known.values()]
        self.engines = [
            (tuple(surfaces.work), tuple(surfaces.itl), tuple(self._batching)) for surfaces in self._surfaces
        ]
        for gpu_type in known:
            self._safety.setdefault(gpu_type, (SafetyFactor(self._level), SafetyFactor(self._level)))
        # Measured ratios are to the surfaces that were; what probes have found holds for the same engines.
        self.evidence = Evidence(len(known), self.evidence if self._kinds == before else None)
        self._asked: dict[int, None] = {}
        """The kinds of replicas that ever came."""

    def cells(self, gpu_type: str) -> Mapping[FleetRow, float]:
        """The cells of the fleet's table that a GPU type sets."""
        kind = self.kind_of(gpu_type)
        ttft, tpot = self._safety_of(gpu_type)
        capacity = self._surfaces[kind].itl.capacity_tokens if kind >= 0 else inf
        self._asked[kind] = None
        return {
            FleetRow.KIND: float(kind),
            FleetRow.CAPACITY_TOKENS: capacity,
            FleetRow.TTFT_CAUTION: ttft.factor - 1.0,
            FleetRow.TPOT_CAUTION: tpot.factor - 1.0,
        }

    def kind_of(self, gpu_type: str) -> int:
        """FleetRow.KIND of replicas of a GPU type."""
        return self._kinds.get(gpu_type, self._kinds.get("", NO_PROFILE))

    def safety_factors(self) -> Mapping[str, SafetyFactor]:
        """The factors of predictions, by name: `ttft`, `tpot` of the deployment's profile, `ttft/L20` of the
        GPU type L20."""
        factors: dict[str, SafetyFactor] = {}
        for gpu_type, (ttft, tpot) in self._safety.items():
            of_type = f"/{gpu_type}" if gpu_type else ""
            factors |= {f"ttft{of_type}": ttft, f"tpot{of_type}": tpot}
        return factors

    def start_from(self, factors: Mapping[str, float]) -> None:
        """Go on from factors that were learnt before; a GPU type without one has that of all."""
        for name, each in self.safety_factors().items():
            each.start_from(factors.get(name, factors.get(name.partition("/")[0], nan)))

    def use(self, model: LatencyModel, age_s: float = 0.0) -> None:
        """Correct by this model from now on; its newest sample is `age_s` old."""
        learned = model.ttft.learned is not None or model.tpot.learned is not None
        self.curves = curves_of(model) if learned else NO_CURVES
        if learned:
            self.evidence.freshness.aged(age_s)
        else:
            self.evidence = Evidence(len(self._surfaces))

    def refused(self, now_s: float, *, newcomer: bool) -> None:
        """Predictions refuse a request. A model that has had no outcomes for long is dropped."""
        self.evidence.probes.refused(now_s, newcomer=newcomer)
        self.evidence.freshness.refused(now_s)
        if self.evidence.freshness.weight < EXPIRED:
            self.curves = NO_CURVES

    @property
    def ttft_factor(self) -> float:
        """The safety factor of TTFT at replicas of the deployment's profile."""
        return self._safety[""][0].factor

    def stayed(self, seconds: float) -> None:
        """A request has decoded for so long."""
        self.stay_s += STAY_SMOOTHING * (max(seconds, 1e-3) - self.stay_s)

    def prompted(self, seconds: float) -> None:
        """A prompt was computed so long after its placement."""
        self.prompt_s += STAY_SMOOTHING * (seconds - self.prompt_s)

    def ended(self, record: Record, ttft_s: float, tpot_s: float) -> None:
        """Compare the predictions that a request was placed by with the outcome, at its replicas."""
        for place, replica in enumerate((record.prefill, record.decode)):
            if replica is None:
                continue
            if replica.safety is None:
                ttft, tpot = self._safety_of(replica.gpu_type)
                replica.safety = ReplicaSafety(ttft), ReplicaSafety(tpot)
            predicted_s, measured_s = ((record.ttft_s, ttft_s), (record.tpot_s, tpot_s))[place]
            replica.safety[place].observe(predicted_s, measured_s)

    def _safety_of(self, gpu_type: str) -> tuple[SafetyFactor, SafetyFactor]:
        return self._safety[gpu_type if self._kinds.get(gpu_type, NO_PROFILE) >= 0 else ""]

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
        newcomer = self._newcomer(asked)
        role, cached = ROLE_CODES[asked.role], asked.cached_tokens
        for kind in self._asked:
            if kind >= 0:
                forecast(role, table, asked.slots, cached, kind, (newcomer, *self.engines[kind]), out)
            else:
                out[:, table[FleetRow.KIND].take(asked.slots) == kind] = np.nan
        return out

    def corrected(self, asked: Candidates, prior: FloatArray, table: FloatArray) -> FloatArray:
        """`prior` with what else TTFT contains, corrected by the model if there is one, within what outcomes
        justify (`evidence`)."""
        limits = self.evidence.limits(asked.now_s)
        if not self.learned and asked.further_s == 0.0:
            return prior
        role, input_tokens = ROLE_CODES[asked.role], float(asked.record.request.input_tokens)
        figures = asked.further_s, *self.curves, limits, self.evidence.freshness.weight
        return corrected(role, table, asked.slots, asked.cached_tokens, input_tokens, prior, figures)

    def supposed(self, asked: Candidates, prior: FloatArray, table: FloatArray) -> FloatArray:
        """What `corrected` would be if load made as much of a difference as in `prior`, and what is known of
        idle replicas held for all."""
        factors = [self.evidence.idle_factor(kind, asked.now_s) for kind in range(len(self._surfaces))]
        return stretched(table, asked.slots, prior, asked.further_s, np.array(factors).reshape(-1, 2))

    @property
    def learned(self) -> bool:
        """True if predictions are more than the profile's."""
        return self.curves is not NO_CURVES or self.evidence.contradicts

    def alone_s(self, asked: Candidates, kinds: Iterable[int]) -> tuple[float, float]:
        """One role's part of TTFT and TPOT at an idle replica, the best of `kinds`; infinite without any.

        By the profile, and by idle replicas that were measured lately.
        """
        newcomer, cached = self._newcomer(asked), asked.cached_tokens
        uncached = asked.record.request.input_tokens - (float(cached.max()) if len(cached) else 0.0)
        best_ttft_s = best_tpot_s = inf
        for kind in kinds:
            if kind < 0:
                continue
            ttft_s, tpot_s = alone(ROLE_CODES[asked.role], uncached, (newcomer, *self.engines[kind]))
            if self.evidence.contradicts:
                ttft, tpot = self.evidence.idle_factor(kind, asked.now_s)
                ttft_s, tpot_s = ttft_s * ttft, tpot_s * tpot
            best_ttft_s, best_tpot_s = min(best_ttft_s, ttft_s), min(best_tpot_s, tpot_s)
        return best_ttft_s, best_tpot_s

    def _newcomer(self, asked: Candidates) -> tuple[float, float, float, float]:
        """`forecast.Newcomer`, plain."""
        record = asked.record
        return asked.now_s, float(record.request.input_tokens), float(record.expected_output), self.stay_s


@compiled
def stretched(
    table: FloatArray, slots: SlotArray, prior: FloatArray, further_s: float, factors: FloatArray
) -> FloatArray:
    """`prior` with `further_s` in TTFT, TTFT and TPOT times the `factors` f8[kinds, 2] of each kind."""
    out = prior.copy()
    for place in range(len(slots)):
        out[ForecastRow.TTFT_S, place] += further_s
        kind = int(table[FleetRow.KIND, slots[place]])
        if kind >= 0:
            out[ForecastRow.TTFT_S, place] *= factors[kind, 0]
            out[ForecastRow.TPOT_S, place] *= factors[kind, 1]
            out[ForecastRow.OTHERS_TPOT_S, place] *= factors[kind, 1]
    return out
