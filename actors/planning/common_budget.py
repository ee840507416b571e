"""The GPU budget that all planners of this process share (`fleet.gpus`), with a part for each application.

    part = common_budget().join("chat", settings, log, clock)
    part.place(wanted, stated)              within a decision: what of it finds room on a node
    part.ask(losses, 30.0)                  then its losses, and what it may take
    part.hold(counts, limits)               whenever they are seen; `settled` once a decision was carried out

A part holds the GPUs of its last targets, or of the counts that the other side has taken where these are
more; of a dry run only the latter. From `ask` until its decision is carried out it holds what it was granted,
too. So after a restart each holds what its log says before anybody asks. The least of the `fleet.gpus` of all
parts is the budget. Parts without one have no share, and what they hold does not count. There is a budget for
each `fleet.gpu_type`; they have nothing to do with each other.

Woken are, out of turn, those that hold more than is due to them when somebody waits for it or the budget
became less, and those that wait when others hold or need less, or the budget became more. `ask` runs beside
the event loop.

Engines that share a GPU do not move to another that is free. So one that waits for its own gets it from an
idle application that holds more than its floor, whatever is free.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import cache
from math import inf, sqrt
from threading import RLock
from typing import Any

from actors.connectors.protocol import PoolCounts
from actors.hosts import Look, nodes_and_groups
from actors.planning.log import DecisionLog
from actors.planning.room import Nodes, Room
from actors.planning.settings import Author, RuntimeSettings
from headway.config import HeadwayConfig
from headway.planning import PlanningError, PoolLimits, Role, policy_settings
from headway.planning.common_budget import NEEDED_RPS, Claim, Division, LiveGrant, divide
from headway.planning.deciding import gpus as gpus_of
from headway.planning.documents import FleetDocument, FleetEntry, ShareFigures, StandingFigures
from headway.planning.placement import EVERY, Layout, Placement
from headway.planning.sharing import GpuLosses, Standing, share
from headway.planning.sleeping import SleepingPool, kept_for_sleep

logger = logging.getLogger(__name__)

STATED_INTERVALS = 3
"""For so many intervals it counts what a part has stated."""
GOLDEN = (sqrt(5.0) - 1.0) / 2.0
GONE_S = 10.0
"""Between two looks whether an application that has left comes again."""


class CommonBudget:
    """All parts, by application. `look` is at Ray's nodes."""

    def __init__(self, look: Callable[[], Look] = nodes_and_groups) -> None:
        self.parts: dict[str, BudgetPart] = {}
        self.lock = RLock()
        self.nodes = Nodes(look)

    def join(
        self, name: str, settings: RuntimeSettings, log: DecisionLog, clock: Callable[[], float]
    ) -> "BudgetPart":
        """The part of an application, in the place of one of that name."""
        with self.lock:
            self.parts[name] = BudgetPart(self, name, settings, log, clock)
            return self.parts[name]

    def phase(self, name: str) -> float:
        """The share of an interval by which the ticks of that application keep away from those before it.

        Multiples of the golden section without their whole part lie evenly, however many there are.
        """
        return len(self.parts.keys() - {name}) * GOLDEN % 1.0

    def sharing(self, gpu_type: str) -> list["BudgetPart"]:
        """The parts that have a share of the budget of that type."""
        return [part for part in self.parts.values() if part.shares and part.gpu_type == gpu_type]

    def gpus(self, gpu_type: str) -> int | None:
        """That budget; None where nobody states one."""
        stated = (part.config.fleet.gpus for part in self.sharing(gpu_type))
        return min((gpus for gpus in stated if gpus is not None), default=None)

    def host_memory(self, gpu_type: str) -> float:
        """Bytes for engines that may sleep; without end where nobody states any."""
        stated = (part.config.fleet.host_memory for part in self.sharing(gpu_type))
        return min((memory for memory in stated if memory is not None), default=inf)

    def division(self, gpu_type: str) -> Division:
        """By what is known now; there must be a budget."""
        claims = (part.claim() for part in self.sharing(gpu_type))
        return divide(claims, self.gpus(gpu_type) or 0, self.host_memory(gpu_type))

    def freed(self, gpu_type: str) -> None:
        """Others hold less of it: wake who waits, as far as something is free."""
        with self.lock:
            sharing = self.sharing(gpu_type)
            waiting = [part for part in sharing if part.waits]
            free = sum(part.holds for part in sharing) < (self.gpus(gpu_type) or 0)
        for part in waiting if free else ():
            part.wake()

    def layout(self, now_s: float) -> Layout:
        """What is free on nodes, and the replicas of all parts. Blocks while it asks Ray."""
        return self.nodes.layout({name: part.room for name, part in self.parts.items()}, now_s)

    async def left(self, part: "BudgetPart", comes_again: Callable[[], Awaitable[bool]]) -> None:
        """Forget a part once its application is none any more; nothing happens if another has its place."""
        while self.parts.get(part.name) is part:
            await asyncio.sleep(GONE_S)
            try:
                gone = not await comes_again()
            except Exception:
                logger.exception("whether %s comes again is not known yet", part.name)
                continue
            if gone and self.parts.get(part.name) is part:
                with self.lock:
                    del self.parts[part.name]
                logger.info("%s gives its share of the common budget back", part.name)
                self.freed(part.gpu_type)

    def document(self) -> FleetDocument:
        """All applications."""
        with self.lock:
            parts = dict(sorted(self.parts.items()))
            entries = tuple(part.entry() for part in parts.values())
            types = sorted({part.gpu_type for part in parts.values() if part.shares})
            budgets = {each: self.gpus(each) or 0 for each in types}
            gpus = sum(budgets.values()) if budgets else None
            by_type, room = budgets if any(types) else {}, self.nodes.words
            return FleetDocument(gpus=gpus, by_type=by_type, room=room, deployments=entries)


@cache
def common_budget() -> CommonBudget:
    """That of this process."""
    return CommonBudget()


class BudgetPart:
    """One application. `wake` makes its planner decide out of turn, `state` is that of its planner, and
    `change` changes its settings.
    """

    def __init__(
        self,
        budget: CommonBudget,
        name: str,
        settings: RuntimeSettings,
        log: DecisionLog,
        clock: Callable[[], float],
    ) -> None:
        self.name, self._budget, self._settings, self._log, self._clock = name, budget, settings, log, clock
        self.wake: Callable[[], None] = lambda: None
        self.state: Callable[[], str] = lambda: "waiting"
        self.change: Callable[[Mapping[str, Any], Author], Awaitable[Any]] | None = None
        self.grant: LiveGrant | None = None
        """That of its last decision."""
        self._losses: GpuLosses | None = None
        self._until_s = 0.0
        self._granted: int | None = None
        """By a decision that is not carried out yet."""
        self._waits = 0
        self.room = Room(name, lambda: self.config)
        self._crowded = self._lends = False
        self._leaving: asyncio.Task[None] | None = None
        self._each = _gpus_each(self.config, log)
        self._held = self._known()

    @property
    def config(self) -> HeadwayConfig:
        """The settings in force."""
        return self._settings.config

    @property
    def shares(self) -> bool:
        """True if it has a share of the budget."""
        return self.config.fleet.gpus is not None

    @property
    def gpu_type(self) -> str:
        """That of the budget."""
        return self.config.fleet.gpu_type

    @property
    def holds(self) -> int:
        """GPUs that nobody else may take."""
        return max(self._held, self._granted or 0)

    @property
    def waits(self) -> bool:
        """True while GPUs are due to it that others hold, or what it wants finds no room."""
        lacks = self._waits > 0 or (self.grant is not None and self.grant.unplaced != "")
        return lacks and self._stated

    @property
    def _stated(self) -> bool:
        return self._clock() < self._until_s

    def claim(self, config: HeadwayConfig | None = None) -> Claim:
        """Its claim, by other settings where they are given."""
        config = config or self.config
        dry_run, standing = config.planner.dry_run, Standing(**config.share.model_dump())
        return Claim(
            name=self.name,
            standing=Standing(priority=standing.priority) if dry_run else standing,
            holds=self.holds,
            minimum_gpus=min(self._minimum(config), self.holds) if dry_run else self._minimum(config),
            losses=self._losses if self._stated and not dry_run else None,
            keeps=self._granted,
            sleeping=() if self._stated else self._unstated(),
        )

    def _unstated(self) -> tuple[SleepingPool, ...]:
        """Its pools whose engines may sleep, until it says what they are worth: all that there are stay."""
        settings = policy_settings(self.config)
        known = {} if self._log.last is None else kept_for_sleep(self._log.last.reasons)
        return tuple(
            SleepingPool(
                role=role,
                engine=engine,
                gpus_awake=settings.limits[role].gpus_per_replica,
                most=(most := known.get(role, settings.limits[role].sleepers)),
                wanted=0,
                held=0,
                kept=most,
                risen=(NEEDED_RPS,) * most,
            )
            for role, engine in settings.sleeping.items()
        )

    def crowd(self, crowded: bool) -> None:
        """Take in whether an engine of another waits for the GPU of one that has nothing to do."""
        self._crowded = crowded
        if crowded and self.shares and self.holds > self._at_least:
            self.wake()

    @property
    def _at_least(self) -> int:
        return max(self._minimum(self.config), self.config.share.floor_gpus)

    def place(self, wanted: Mapping[Role, int], losses: GpuLosses) -> Placement:
        """Of the replicas wanted, with these losses, those that find room; all where that is not judged, or
        where no more than these are due to it.
        """
        if not self.room.judged or self.config.planner.dry_run:
            return EVERY
        with self._budget.lock:
            layout = self._budget.layout(now_s := self._clock())
            if self.room.gpus(layout) < (self._budget.gpus(self.gpu_type) or 0):
                return EVERY
            return self.room.place(wanted, layout, lambda: self._with(losses), self._gpus, now_s)

    def _with(self, losses: GpuLosses) -> Division:
        """The division if it stated these losses."""
        mine = replace(self.claim(), losses=losses, keeps=None)
        claims = [*(part.claim() for part in self.others()), mine]
        return divide(claims, self._budget.gpus(self.gpu_type) or 0)

    def ask(self, losses: GpuLosses, interval_s: float, wanted: int = 0, unplaced: str = "") -> LiveGrant:
        """What it may take now that it states these losses; PlanningError where that is below its minimum.

        It wants so many GPUs, of which some are `unplaced` and so have no losses. A dry run states them to
        nobody, and is granted what would be due to it.
        """
        with self._budget.lock:
            if self.config.planner.dry_run:
                self.grant = self._supposed(losses)
                return self.grant
            self._losses, self._until_s = losses, self._clock() + STATED_INTERVALS * interval_s
            self._granted = None
            division = self._budget.division(self.gpu_type)
            grant = self._lent(division.grant(self.name), losses)
            self.grant = grant = replace(grant, wanted=max(grant.wanted, wanted), unplaced=unplaced)
            self._granted, self._waits = grant.gpus, 0 if grant.lent else division.waits(self.name)
            tell = division.over if self._waits or division.free < 0 else {}
            over = [self._budget.parts[name] for name in {*tell, *division.crowding} if name != self.name]
            over += [part for part in self.others() if part.may_take(division)]
        for part in over:
            part.wake()
        if grant.gpus < self._minimum(self.config):
            raise PlanningError(f"fleet.gpus: not even min_replicas are free yet; {grant.words}")
        return grant

    def changed(self) -> None:
        """Wake those that may take what is free by the settings now in force."""
        if not self.shares:
            return
        with self._budget.lock:
            division = self._budget.division(self.gpu_type)
            able = [part for part in self._budget.sharing(self.gpu_type) if part.may_take(division)]
        for part in able:
            part.wake()

    def may_take(self, division: Division) -> bool:
        """Whether GPUs are free that are due to it beyond its last grant; else it waits for what is due."""
        if self.grant is None or self.grant.lent or not self._stated:
            return False
        had = max(self.holds, self.grant.gpus)
        self._waits = max(0, division.due[self.name].gpus - had)
        return self._waits > 0 and division.grant(self.name).gpus > had

    def _lent(self, grant: LiveGrant, losses: GpuLosses) -> LiveGrant:
        """Without what an engine of another waits for, from then on until something is asked of this one."""
        self._lends = losses.idle and (self._lends or self._crowded)
        keeps = losses.whole(max(self._at_least, losses.minimum_gpus))
        return (
            replace(grant, gpus=keeps, lent=grant.gpus - keeps)
            if self._lends and keeps < grant.gpus
            else grant
        )

    def hold(
        self,
        counts: Mapping[Role, PoolCounts],
        limits: Mapping[Role, PoolLimits] | None = None,
        *,
        settled: bool = False,
    ) -> None:
        """Take in the counts as the other side has them; `settled` after a decision."""
        with self._budget.lock:
            before = self.holds
            if limits is not None:
                self._each = limits
            desired = {role: pool.desired for role, pool in counts.items()}
            self._held = max(self._planned(), self._gpus(desired)) if counts else self._held
            if settled:
                self._granted = None
            fell = self.holds < before
        if fell and self.shares:
            self._budget.freed(self.gpu_type)

    def check(self, config: HeadwayConfig) -> None:
        """PlanningError for settings with which minimums or floors of all are more than the budget."""
        own, now = config.fleet.gpus, self.config
        if own is None or (config.fleet, config.share, config.pools) == (now.fleet, now.share, now.pools):
            return
        with self._budget.lock:
            others = self.others()
            stated = [part.config.fleet.gpus or own for part in others] if own == now.fleet.gpus else []
            mine = self.claim(config)
            claims = [
                *(part.claim() for part in others),
                Claim(
                    name=mine.name,
                    standing=mine.standing,
                    holds=mine.minimum_gpus,
                    minimum_gpus=mine.minimum_gpus,
                ),
            ]
        share((claim.demand for claim in claims), min([own, *stated]))

    def others(self) -> list["BudgetPart"]:
        """The other parts that share its budget."""
        return [part for part in self._budget.sharing(self.gpu_type) if part is not self]

    def figures(self) -> ShareFigures | None:
        """For the status; None without a share."""
        gpus, grant = self._budget.gpus(self.gpu_type), self.grant
        if not self.shares or gpus is None:
            return None
        return ShareFigures(
            gpus=gpus,
            holds=self.holds,
            wanted=None if grant is None else grant.wanted,
            granted=None if grant is None else grant.gpus,
            words="" if grant is None else grant.words,
        )

    def entry(self) -> FleetEntry:
        """For a screen of the fleet."""
        config, figures = self.config, self.figures() or ShareFigures(holds=self.holds)
        return FleetEntry(
            **figures.model_dump(exclude={"gpus"}),
            name=self.name,
            model=config.model,
            state=self.state(),
            dry_run=config.planner.dry_run,
            shares=self.shares,
            gpu_type=self.gpu_type,
            standing=StandingFigures(**config.share.model_dump()),
        )

    def fleet(self) -> FleetDocument:
        """All applications of this process."""
        return self._budget.document()

    def leave(self, comes_again: Callable[[], Awaitable[bool]]) -> None:
        """Its planner has ended; it holds what it does until its application is none any more."""
        self.wake, self.state = lambda: None, lambda: "stopped"
        self._leaving = asyncio.get_running_loop().create_task(self._budget.left(self, comes_again))

    def _supposed(self, losses: GpuLosses) -> LiveGrant:
        others = (part.claim() for part in self.others())
        standing = Standing(**self.config.share.model_dump())
        mine = Claim(
            name=self.name,
            standing=standing,
            holds=losses.held_gpus,
            minimum_gpus=self._minimum(self.config),
            losses=losses,
        )
        budget, memory = self._budget.gpus(self.gpu_type) or 0, self._budget.host_memory(self.gpu_type)
        return divide([*others, mine], budget, memory).planned(self.name)

    def _known(self) -> int:
        """What it holds as far as that shows before anybody was asked; its minimum where it is new."""
        if (last := self._log.last) is None:
            return self._minimum(self.config)
        seen = {role: pool.desired or 0 for role, pool in last.pools.items()}
        return self._gpus(seen if last.dry_run else last.targets)

    def _planned(self) -> int:
        last = self._log.last
        return 0 if last is None or last.dry_run else self._gpus(last.targets)

    def _minimum(self, config: HeadwayConfig) -> int:
        return self._gpus({Role(name): pool.min_replicas for name, pool in config.pools.items()})

    def _gpus(self, counts: Mapping[Role, int]) -> int:
        return gpus_of({role: count for role, count in counts.items() if role in self._each}, self._each)


def _gpus_each(config: HeadwayConfig, log: DecisionLog) -> Mapping[Role, PoolLimits]:
    """The pools as the last decision had them: what a profile says of their GPUs is not known yet."""
    planned = {} if log.last is None else log.last.reasons.get("settings", {}).get("limits", {})
    return {
        **policy_settings(config).limits,
        **{
            Role(name): PoolLimits(gpus_per_replica=limits["gpus_per_replica"])
            for name, limits in planned.items()
        },
    }
