"""Advice of a live planner: its ledgers, its advisor, and the documents.

In a dry run the plan's fleet goes beside the real one. It is part of the planner's memory, so that it is
always the one from which the next decision is made. Once the planner acts, the fleet that stood there before
goes beside the real one, and nothing is decided from it.

Both ledgers are in the store, read once and written beside the event loop. `PLACE/hours/H` has the rows of
the hour H since 1970, put again with each row; hours that the ledger has put together since lie under
`PLACE/old`. What the store did not take is put with the next row.
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any

from actors.collector.interval import Measured
from actors.connectors.protocol import PoolCounts
from actors.store import Store
from actors.stored import Kind, put, put_aside, read
from headway.config import HeadwayConfig
from headway.planning import Observation, PolicySettings, PoolState, Role
from headway.planning.advice.advisor import Advisor, AdvisorMemory, Look, Seen
from headway.planning.advice.ledger import Ledger, Row, hour_of, point, points, window
from headway.planning.advice.replay import PlannedPool, StartUp
from headway.planning.documents import AdviceDocument, AdviceFigures
from headway.planning.hindsight.history import Attained, attained
from headway.planning.policies import jsonable
from headway.planning.records import AdvicePoint
from headway.planning.replay import ReplayEngine
from interp import Profile

logger = logging.getLogger(__name__)

PLACE, ACTED = "planner/advice", "planner/acted"
GUESS_S = 60.0
HOUR_S, DAY_S = 3600.0, 86400.0
MOST_LOOKS = 2000

Fleet = Mapping[Role, int]
ROWS, FLEETS = Kind("advice", list[dict[str, Any]]), Kind("compared", list[Fleet | None])


class StoredLedger:
    """The ledger at a place of `store`; without a store in memory alone. `add` is quick, `keep` writes."""

    def __init__(self, store: Store | None, place: str) -> None:
        self._store = store
        self._hours, self._old = f"{place}/hours/", f"{place}/old"
        self._unkept: frozenset[int] = frozenset()
        self._rolled_up: int | None = None
        self._begun_anew = False
        self.ledger = Ledger()
        if store is not None:
            keys = sorted(self._kept_hours(store), key=self._hour)
            rows = [row for key in keys for row in _rows(store, key)]
            old = [row for row in _rows(store, self._old) if not rows or row.end_s <= rows[0].start_s]
            self.ledger = Ledger(hours=old, rows=rows)

    @property
    def last_s(self) -> float | None:
        """When the last row ended; None before the first."""
        rows = self.ledger.rows or self.ledger.hours
        return rows[-1].end_s if rows else None

    def add(self, row: Row) -> None:
        """One more row, which `keep` stores."""
        self.ledger = self.ledger.add(row)
        self._unkept |= {hour_of(row)}

    def begin_anew(self) -> None:
        """Drop every row."""
        self.ledger, self._unkept, self._begun_anew = Ledger(), frozenset(), True

    def keep(self) -> None:
        """Have the store take what it has not taken yet. Raises what the store raises."""
        if self._store is None:
            return
        if self._begun_anew:
            for key in (*self._store.keys(self._hours), self._old):
                self._store.delete(key)
            self._begun_anew = False
        if not self._unkept:
            return
        ledger, hours = self.ledger, self._unkept
        for hour in sorted(hours):
            mine = [each.dump() for each in ledger.rows if hour_of(each) == hour]
            put(self._store, ROWS, f"{self._hours}{hour}", mine)
        if self._rolled_up != max(hours):
            self._roll_up(ledger)
            self._rolled_up = max(hours)
        if self.ledger is ledger:
            self._unkept = frozenset()

    def _roll_up(self, ledger: Ledger) -> None:
        """Once an hour: what the ledger has put together meanwhile moves."""
        assert self._store is not None
        put(self._store, ROWS, self._old, [each.dump() for each in ledger.hours])
        first = hour_of(ledger.rows[0])
        for key in self._store.keys(self._hours):
            if self._hour(key) < first:
                self._store.delete(key)

    def _kept_hours(self, store: Store) -> Iterator[str]:
        """Their keys; what lies beside them under another name is put aside."""
        for key in store.keys(self._hours):
            if re.fullmatch("[0-9]{1,9}", key.removeprefix(self._hours)):
                yield key
            else:
                put_aside(store, key, "no hour has such a key")
                store.delete(key)

    def _hour(self, key: str) -> int:
        return int(key.removeprefix(self._hours))


def _rows(store: Store, key: str) -> Sequence[Row]:
    """The stored rows; none where they cannot be read."""
    return read(store, ROWS, key, lambda rows: [Row.load(each) for each in rows]) or []


class ActedLedger:
    """What acting is compared with, and the rows of it, at `place` of a store.

    The fleet `against` is the one that settings name; else the one that stood there when the dry run ended
    that came before the first action. A planner that acted from its beginning has none. With another fleet
    the rows begin anew.
    """

    def __init__(self, store: Store | None, place: str) -> None:
        self.rows = StoredLedger(store, place)
        self._store, self._key = store, f"{place}/against"
        self._stood: Fleet | None = None
        self.against: Fleet = {}
        if store is not None and (found := read(store, FLEETS, self._key, _fleets)) is not None:
            self._stood, self.against = found
        self._kept = self._fleets

    def choose(self, config: HeadwayConfig, pools: Mapping[Role, PoolState], *, watched: bool) -> Fleet:
        """The fleet to compare with; empty where there is none. `watched`: until now it was a dry run."""
        named = {Role(role): count for role, count in config.planner.advice.against.items()}
        if self._stood is None:
            self._stood = {role: pool.desired for role, pool in pools.items()} if watched else {}
        found = named or self._stood
        if set(found) != set(pools) or not any(found.values()):
            return {}
        if found != self.against:
            self.against = found
            self.rows.begin_anew()
        return found

    def keep(self) -> None:
        """Have the store take what it has not taken yet. Raises what the store raises."""
        if self._store is not None and (fleets := self._fleets) != self._kept:
            put(self._store, FLEETS, self._key, fleets)
            self._kept = fleets
        self.rows.keep()

    @property
    def _fleets(self) -> Sequence[Fleet | None]:
        return [self._stood, self.against]


def _fleets(stored: Sequence[Fleet | None]) -> tuple[Fleet | None, Fleet]:
    stood, against = stored
    return stood, against or {}


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
    ended = measured.ended
    if isfinite(ended) and not measured.ttft_only:
        return Attained(ended=ended, met=measured.attainment * ended)
    return attained(observation.traffic, settings.slo)


def _states(counts: Mapping[Role, PoolCounts]) -> Mapping[Role, PoolState]:
    return {role: PoolState(**asdict(pool)) for role, pool in counts.items()}
