"""Drift of the counts: noticing that others changed what we had set, and overruling or yielding to them.

The rules are pure. `ours` are the counts that the other side took from us last, by role; a role that we have
never set has none. With d the desired count that is observed:

    d = ours                    in order
    d ≠ ours                    an edit: the count found, since when, by whom where the other side shows it
    d changes again             the same edit; the time until which we yield begins anew

A decision for target t of a role with an edit:

    t = found                   agreed, the edit is over
    overrule                    t is set; the edit is over
    yield                       the role keeps `found` until `yield_s` have passed without a change
    overruled FIGHT times in a row, an edit after each of our writes
                                another controller sets the count: as yield, whatever the setting is

The default is to overrule: a planner that promises an SLO must not stop because a deployment's manifest was
applied again with its old `replicas`, the commonest edit there is. Other counts have settings of their own
(`pools.ROLE.min_replicas`, `max_replicas`), which take effect at once. A fight is another matter: each flip
ends engines that were about to serve, and gains nothing.

`DriftAwareConnector` puts the rules around any connector. It looks before each write, and at each `state`,
which the planner asks every second. What we set is in the store, so that a restarted planner can tell its own
counts from those of others.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from actors.connectors.protocol import (
    Action,
    CarriedOutLater,
    Connector,
    ConnectorError,
    Editor,
    PoolCounts,
    PoolsSnapshot,
    Ready,
    Refused,
    TellsContradictions,
    TellsEditors,
    TellsReplicas,
    TellsRivals,
    Unreachable,
)
from actors.store import Store
from actors.stored import Kind, put, read
from headway.config import HeadwayConfig
from headway.planning import Role

KEY = "connector/custody"
KIND = Kind("custody", dict[str, Any])
FIGHT = 3
"""Writes in a row after each of which somebody changed the count."""
RIVALS_S = 15.0
"""Between two looks for other controllers."""

OffLoop = Callable[..., Awaitable[None]]
"""Runs a function with its arguments beside the event loop: the store may take its time."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A count that is not ours. Times are Unix seconds; `by` and `changed_s` where the other side tells."""

    found: int
    ours: int
    seen_s: float
    by: str = ""
    changed_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """What we set and when, edits that are not over, and how often in a row each role was overruled."""

    ours: Mapping[Role, int] = field(default_factory=dict)
    set_s: float = 0.0
    edits: Mapping[Role, Edit] = field(default_factory=dict)
    rounds: Mapping[Role, int] = field(default_factory=dict)

    def see(self, desired: Mapping[Role, int], now_s: float) -> "Drift":
        """The drift after a look at the desired counts."""
        edits = {}
        for role, found in desired.items():
            ours, edit = self.ours.get(role, found), self.edits.get(role)
            if found != ours:
                same = edit is not None and edit.found == found
                edits[role] = edit if same and edit else Edit(found=found, ours=ours, seen_s=now_s)
        return self if edits == self.edits else replace(self, edits=edits)

    def held(self, targets: Mapping[Role, int], rules: "EditRules", now_s: float) -> dict[Role, Edit]:
        """Edits that these targets do not touch."""
        return {
            role: edit
            for role, edit in self.edits.items()
            if role in targets
            and targets[role] != edit.found
            and (rules.yields or self.rounds.get(role, 0) >= FIGHT)
            and abs(now_s - edit.seen_s) < rules.yield_s
        }

    def written(self, targets: Mapping[Role, int], now_s: float) -> "Drift":
        """The drift after the other side took these targets."""
        overruled = {role for role, edit in self.edits.items() if targets.get(role, edit.found) != edit.found}
        rounds = {role: self.rounds.get(role, 0) + 1 if role in overruled else 0 for role in targets}
        return replace(
            self,
            ours={**self.ours, **targets},
            set_s=now_s,
            edits={role: edit for role, edit in self.edits.items() if role not in targets},
            rounds={**self.rounds, **rounds},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EditRules:
    """What is done about edits."""

    yields: bool
    yield_s: float


class DriftAwareConnector:
    """A connector whose counts others may change, under the settings in force; `clock` gives Unix seconds."""

    def __init__(
        self,
        connector: Connector,
        config: Callable[[], HeadwayConfig],
        store: Store,
        clock: Callable[[], float],
        off_loop: OffLoop = asyncio.to_thread,
    ) -> None:
        self._off_loop = off_loop
        self._connector, self._config, self._clock = connector, config, clock
        self._store, self._target = store, target_of(config())
        self._drift = _restored(store, self._target)
        self._rivals: Sequence[str] = ()
        self._looked_s = float("-inf")
        self._claimed = False
        # One call at a time: a count that was read before a write is not compared with what was written.
        self._turn = asyncio.Lock()

    async def set_targets(self, targets: Mapping[Role, int], reasons: Mapping[str, Any]) -> Action:
        """Set them but for roles that are left to others; Refused while another controller is there."""
        async with self._turn:
            self._claimed = True
            await self._look_for_rivals(within_s=0.0)
            if self._rivals:
                raise Refused("; ".join(self._rivals))
            await self._see(await self._connector.state())
            now_s = self._clock()
            held = self._drift.held(targets, self._rules, now_s)
            passed = {role: count for role, count in targets.items() if role not in held}
            action = Action(status="yielded")
            if passed:
                action = await self._connector.set_targets(passed, reasons)
                await self._keep(self._drift.written(passed, now_s))
        if not held:
            return action
        left = {role.value: self._line(role, edit) for role, edit in held.items()}
        return Action(status="yielded", detail={**action.detail, "yielded": left})

    async def state(self) -> Mapping[Role, PoolCounts]:
        """The pools now."""
        async with self._turn:
            counts = await self._connector.state()
            await self._look_for_rivals(within_s=RIVALS_S)
            await self._see(counts)
        return counts

    async def ready(self) -> Ready:
        """As the connector says."""
        return await self._connector.ready()

    def notes(self) -> list[str]:
        """A line for each edit that is not over, each other controller, and each contradiction."""
        return [*(self._line(*item) for item in self._drift.edits.items()), *self._others()]

    def document(self) -> dict[str, Any]:
        """Edits and other controllers as JSON-able data; empty where there are none."""
        edits = [
            {
                "role": role.value,
                "found": edit.found,
                "ours": edit.ours,
                "seen_at": edit.seen_s,
                "by": edit.by or None,
                "changed_at": edit.changed_s,
                "left_until": edit.seen_s + self._rules.yield_s if self._yields(role) else None,
            }
            for role, edit in self._drift.edits.items()
        ]
        return {
            **({"foreign_edits": edits} if edits else {}),
            **({"rivals": others} if (others := self._others()) else {}),
        }

    def _others(self) -> list[str]:
        """Other controllers, and counts that are told differently: these keep nothing from being set."""
        connector = self._connector
        return [
            *self._rivals,
            *(connector.contradictions if isinstance(connector, TellsContradictions) else ()),
        ]

    async def _see(self, counts: Mapping[Role, PoolCounts]) -> None:
        if self._config().planner.dry_run:
            # Others set the counts then; the first decision that acts begins with what it finds.
            await self._keep(Drift())
            return
        drift = self._drift
        if isinstance(self._connector, CarriedOutLater):
            if self._connector.carried_out is None:
                return
            drift = replace(drift, ours=self._connector.carried_out)
        seen = drift.see({role: pool.desired for role, pool in counts.items()}, self._clock())
        fresh = {role for role, edit in seen.edits.items() if edit != drift.edits.get(role)}
        if fresh:
            editors = await self._editors(seen.set_s)
            named = {
                role: replace(edit, by=editors[role].by, changed_s=editors[role].at_s)
                if role in fresh and role in editors
                else edit
                for role, edit in seen.edits.items()
            }
            seen = replace(seen, edits=named)
        await self._keep(seen)
        for role in fresh:
            logger.warning("%s", self._line(role, seen.edits[role]))

    async def _editors(self, since_s: float) -> Mapping[Role, Editor]:
        if not isinstance(self._connector, TellsEditors):
            return {}
        try:
            return await self._connector.editors(since_s)
        except ConnectorError as error:
            logger.info("who changed the counts does not show: %s", error)
            return {}

    async def _look_for_rivals(self, within_s: float) -> None:
        now_s = self._clock()
        if not isinstance(self._connector, TellsRivals) or 0 <= now_s - self._looked_s < within_s:
            return
        self._looked_s = now_s
        claim = self._claimed and not self._config().planner.dry_run
        try:
            self._rivals = await self._connector.rivals(claim=claim)
        except ConnectorError as error:
            # Before a write, a side that does not answer need not be asked again.
            if within_s == 0.0 and isinstance(error, Unreachable):
                raise
            logger.info("other controllers do not show: %s", error)

    async def _keep(self, drift: Drift) -> None:
        if drift != self._drift:
            document = {"target": self._target, **asdict(drift)}
            await self._off_loop(put, self._store, KIND, KEY, document)
            self._drift = drift

    @property
    def _rules(self) -> EditRules:
        settings = self._config().connector
        return EditRules(yields=settings.foreign_edits == "yield", yield_s=settings.yield_s)

    def _yields(self, role: Role) -> bool:
        return self._rules.yields or self._drift.rounds.get(role, 0) >= FIGHT

    def _line(self, role: Role, edit: Edit) -> str:
        who = f" by {edit.by}" if edit.by else " by others"
        at = _time(edit.seen_s if edit.changed_s is None else edit.changed_s)
        what = "overruled at the next decision"
        if self._yields(role):
            fight = self._drift.rounds.get(role, 0) >= FIGHT
            why = f"changed after each of {FIGHT} writes: another controller?" if fight else "yielded to"
            what = f"left so until {_time(edit.seen_s + self._rules.yield_s)} ({why})"
        return f"{role}: {edit.found}, not {edit.ours} as set, changed{who} at {at}; {what}"


class DriftAwareReplicas(DriftAwareConnector):
    """The same for a connector that can tell replicas apart."""

    async def snapshot(self) -> PoolsSnapshot:
        """The pools now, replica by replica."""
        assert isinstance(self._connector, TellsReplicas)
        async with self._turn:
            snapshot = await self._connector.snapshot()
            await self._look_for_rivals(within_s=RIVALS_S)
            await self._see(snapshot.pools)
        return snapshot


def drift_aware(
    connector: Connector,
    config: Callable[[], HeadwayConfig],
    store: Store,
    clock: Callable[[], float],
    off_loop: OffLoop = asyncio.to_thread,
) -> DriftAwareConnector:
    """The connector, with an eye on edits by others."""
    kind = DriftAwareReplicas if isinstance(connector, TellsReplicas) else DriftAwareConnector
    return kind(connector, config, store, clock, off_loop)


def target_of(config: HeadwayConfig) -> str:
    """The settings that name what is scaled: counts of another target are none of this one."""
    return config.connector.model_dump_json(
        include={"kind", "options", "kubernetes", "ray_serve"}, exclude_defaults=True
    )


def _restored(store: Store, target: str) -> Drift:
    def use(stored: Mapping[str, Any]) -> Drift:
        return msgspec.convert(stored, Drift) if stored["target"] == target else Drift()

    return read(store, KIND, KEY, use) or Drift()


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
