"""Advice of a live planner: its ledgers, its advisor, and the documents.

In a dry run the plan's fleet goes beside the real one. It is part of the planner's memory, so that it is
always the one from which the next decision is made. Once the planner acts, the fleet that stood there before
goes beside the real one, and nothing is decided from it.
"""

import logging
from collections.abc import Mapping
from dataclasses import asdict, replace
from math import isfinite
from typing import Any

from actors.collector.interval import Measured
from actors.connectors.protocol import PoolCounts
from actors.planning.advice_ledger import ActedLedger, Fleet, StoredLedger
from actors.store import Store
from headway.config import HeadwayConfig
from headway.planning import Observation, PolicySettings, PoolState, Role, Slo
from headway.planning.advice.advisor import Advisor, AdvisorMemory, Attained, Look, Seen, attained
from headway.planning.advice.ledger import Row, point, points, window
from headway.planning.advice.replay import PlannedPool, StartUp
from headway.planning.documents import AdviceDocument, AdviceFigures
from headway.planning.policies import jsonable
from headway.planning.records import AdvicePoint
from headway.planning.replay import ReplayEngine
from interp import Profile

logger = logging.getLogger(__name__)

PLACE, ACTED = "planner/advice", "planner/acted"
GUESS_S = 60.0
HOUR_S, DAY_S = 3600.0, 86400.0
MOST_LOOKS = 2000


class LiveAdvice:
    """The advice of one planner, kept in `store`; without one in memory alone.

    `_beside` is the static fleet that goes beside the real one; None: the plan's.
    """

    def __init__(self, store: Store | None = None) -> None:
        self._advisor: Advisor | None = None
        self._beside: Fleet | None = None
        self._of: PolicySettings | None = None
        self._engine: ReplayEngine | None = None
        self._looks: list[Look] = []
        self._watched = StoredLedger(store, PLACE)
        self._acted = ActedLedger(store, ACTED)
        self._figures: tuple[object, AdviceFigures] | None = None

    def look(self, now_s: float, counts: Mapping[Role, PoolCounts]) -> None:
        """Note the real pools, where they have changed."""
        pools = _states(counts)
        if self._advisor is not None and (not self._looks or self._looks[-1][1] != pools):
            self._looks = [*self._looks[-MOST_LOOKS:], (now_s, pools)]

    def see(
        self,
        observation: Observation,
        measured: Measured,
        setting: tuple[PolicySettings, Profile, HeadwayConfig],
        *,
        known: bool,
        memory: AdvisorMemory | None,
    ) -> tuple[Observation, AdvicePoint | None]:
        """One interval of a dry run: what to plan from, and the interval as both fleets had it.

        `known` is False where the real counts are old ones; `memory` is that of the last decision.
        """
        self._go_beside(None)
        shown, row = self._interval(observation, measured, setting, known=known, memory=memory)
        if row is None:
            return shown, None
        self._watched.add(row)
        return shown, point(row)

    def against(
        self, config: HeadwayConfig, pools: Mapping[Role, PoolState], *, watched: bool
    ) -> Fleet | None:
        """The planner acts: the static fleet to `compare` with; None without one, or while one is chosen.

        `watched`: the last decision was that of a dry run, of which these are the pools.
        """
        fleet = self._acted.choose(config, pools, watched=watched)
        self._go_beside(fleet)
        return None if watched or not fleet else fleet

    def compare(
        self,
        observation: Observation,
        measured: Measured,
        setting: tuple[PolicySettings, Profile, HeadwayConfig],
        *,
        known: bool,
    ) -> None:
        """One interval of a planner that acts, beside the static fleet."""
        assert self._beside, "there is a fleet to compare with"
        fleet = {role: PlannedPool(desired=count, ready=count) for role, count in self._beside.items()}
        memory = AdvisorMemory(planned=fleet, seen={})
        _, row = self._interval(observation, measured, setting, known=known, memory=memory)
        if row is not None:
            self._acted.rows.add(row)

    def _go_beside(self, fleet: Fleet | None) -> None:
        if fleet != self._beside:
            self._advisor, self._looks, self._beside = None, [], fleet

    def _interval(
        self,
        observation: Observation,
        measured: Measured,
        setting: tuple[PolicySettings, Profile, HeadwayConfig],
        *,
        known: bool,
        memory: AdvisorMemory | None,
    ) -> tuple[Observation, Row | None]:
        settings, profile, config = setting
        advisor = self._advising(settings, config, memory)
        looks, self._looks = self._looks, []
        seen = Seen(attained=_attained(measured, observation, settings), looks=looks, known=known)
        return advisor.see(observation, self._engine_of(settings, profile), seen)

    def keep(self) -> None:
        """Store what is new; a store that fails is logged."""
        try:
            self._watched.keep()
            self._acted.keep()
        except Exception:  # Ray's client raises what its transport raises
            logger.warning("the store does not take the advice of this interval", exc_info=True)

    def order(self, targets: Mapping[Role, int], now_s: float) -> AdvisorMemory | None:
        """The plan's targets, and what to remember."""
        if self._advisor is None:
            return None
        self._advisor.order(targets, now_s)
        return self._advisor.memory

    def figures(self, config: HeadwayConfig) -> AdviceFigures | None:
        """For the status document; None before there is any. Windows end with the last interval of theirs."""
        last_s = self._watched.last_s, self._acted.rows.last_s
        if last_s == (None, None):
            return None
        key = (last_s, config.planner, config.gpu_types)
        if self._figures is None or self._figures[0] != key:
            figures = {**self._common(config), **self._windows(config, acted=False)}
            if self._acted.rows.last_s is not None:
                figures["acted"] = {"against": self._acted.against, **self._windows(config, acted=True)}
            self._figures = key, AdviceFigures.model_validate(jsonable(figures))
        return self._figures[1]

    def document(self, config: HeadwayConfig, since_s: float | None) -> AdviceDocument:
        """The last `since_s` seconds of the dry run and of acting, or all of it, with their course."""
        figures = self.figures(config)
        document = {
            **(self._common(config) if figures is None else figures.document()),
            "model": config.model,
            "slo": config.slo.model_dump(),
            "policy": config.planner.policy,
            **self._course(config, since_s, acted=False),
        }
        if "acted" in document:
            document["acted"] |= self._course(config, since_s, acted=True)
        return AdviceDocument.model_validate(jsonable(document))

    def _rows(self, since_s: float | None, *, acted: bool) -> list[Row]:
        ledger = self._acted.rows if acted else self._watched
        at_s = 0.0 if since_s is None or ledger.last_s is None else ledger.last_s - since_s
        return ledger.ledger.since(at_s)

    def _windows(self, config: HeadwayConfig, *, acted: bool) -> dict[str, Any]:
        since = {"hour": HOUR_S, "day": DAY_S, "start": None}
        return {name: self._window(config, since_s, acted=acted) for name, since_s in since.items()}

    def _course(self, config: HeadwayConfig, since_s: float | None, *, acted: bool) -> dict[str, Any]:
        course = points(self._rows(since_s, acted=acted), acted=acted)
        return {
            "window": self._window(config, since_s, acted=acted),
            "points": [each.document() for each in course],
        }

    def _window(self, config: HeadwayConfig, since_s: float | None, *, acted: bool) -> dict[str, Any] | None:
        return window(
            self._rows(since_s, acted=acted),
            price=config.price_per_gpu_hour(),
            start_up_known=acted or self._start_up(config).sure,
            acted=acted,
        )

    def _common(self, config: HeadwayConfig) -> dict[str, Any]:
        planned = {} if self._advisor is None or self._beside is not None else self._advisor.planned
        start_up = self._start_up(config)
        return {
            "acting": not config.planner.dry_run,
            "price_per_gpu_hour": config.price_per_gpu_hour(),
            "currency": config.planner.advice.currency,
            "start_up_s": {role: start_up.of(Role(role)) for role in config.pools},
            "start_up_known": start_up.sure,
            "pools": {
                role: {"desired": pool.desired, "starting": len(pool.coming_s), "ready": pool.ready}
                for role, pool in planned.items()
            },
        }

    def _advising(
        self, settings: PolicySettings, config: HeadwayConfig, memory: AdvisorMemory | None
    ) -> Advisor:
        if self._advisor is None:
            ends_s = (ledger.last_s or 0.0 for ledger in (self._watched, self._acted.rows))
            self._advisor = Advisor(settings.limits, self._start_up(config), memory, after_s=max(ends_s))
        elif self._of is not None and settings.limits != self._of.limits:
            self._advisor.use(settings.limits)
        self._of = settings
        return self._advisor

    def _start_up(self, config: HeadwayConfig) -> StartUp:
        if self._advisor is not None:
            return self._advisor.start_up
        return StartUp(guess_s=GUESS_S, stated_s=config.planner.advice.start_up_s)

    def _engine_of(self, settings: PolicySettings, profile: Profile) -> ReplayEngine:
        if self._engine is None or self._engine.profile is not profile or self._engine.slo != settings.slo:
            assert settings.engine is not None, "live policies know their engine"
            self._engine = ReplayEngine.of(profile, settings.slo, settings.engine)
        return self._engine


def _attained(measured: Measured, observation: Observation, settings: PolicySettings) -> Attained:
    counts = [count for count in (measured.completed, measured.requests) if isfinite(count)]
    if isfinite(measured.attainment) and counts and not measured.ttft_only:
        ended = max(counts)
        return Attained(ended=ended, met=measured.attainment * ended)
    return attained(observation.traffic, settings.slo)


def judged(measured: Measured, observation: Observation, slo: Slo) -> Measured:
    """With the share of the requests whose first token was in time, where the source judges no requests.

    Engines behind a Prometheus do not: their TTFT histogram tells it, their gaps belong to no request.
    """
    found = attained(observation.traffic, slo)
    if isfinite(measured.attainment) or not (found.ttft_only and found.ended):
        return measured
    return replace(measured, attainment=found.met / found.ended, ttft_only=True)


def _states(counts: Mapping[Role, PoolCounts]) -> Mapping[Role, PoolState]:
    return {role: PoolState(**asdict(pool)) for role, pool in counts.items()}
