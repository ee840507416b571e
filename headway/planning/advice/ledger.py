"""The ledger of advice: what both fleets took and served, by interval, after two days by hour.

All figures of a row are sums, so rows add up to hours, and hours to windows. Rows exist for intervals whose
real counts were known; a gap between rows is time of which nothing is said. At most FINE rows and COARSE
hours are kept: at 30 s two days and ten weeks.

`measured` are requests that ended and of which it is known whether they kept their SLO, `stood` and `planned`
the same by replay of the real fleet and of the planned one. `calm_*` are of intervals in which the replay of
the real fleet has long lost few of those that can be kept and that fleet has not changed: only there do
replay and measurement speak of the engine rather than of a queue.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from headway.planning.types import Role

HOUR_S = 3600.0
FINE, COARSE = 5760, 1680

SUMS = (
    "seconds", "requests", "stood_gpu_s", "planned_gpu_s", "starting_gpu_s", "measured", "measured_met",
    "stood", "stood_met", "planned", "planned_met",
    "calm_measured", "calm_measured_met", "calm_replayed", "calm_replayed_met",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One interval, or several: GPU-seconds, numbers of requests, replica-seconds ready by role.

    `seconds` is the time covered, `starting_gpu_s` the part of `planned_gpu_s` that went into starts.
    """

    start_s: float
    end_s: float
    seconds: float
    requests: float = 0.0
    stood_gpu_s: float = 0.0
    planned_gpu_s: float = 0.0
    starting_gpu_s: float = 0.0
    measured: float = 0.0
    measured_met: float = 0.0
    stood: float = 0.0
    stood_met: float = 0.0
    planned: float = 0.0
    planned_met: float = 0.0
    calm_measured: float = 0.0
    calm_measured_met: float = 0.0
    calm_replayed: float = 0.0
    calm_replayed_met: float = 0.0
    stood_replica_s: Mapping[Role, float] = field(default_factory=dict)
    planned_replica_s: Mapping[Role, float] = field(default_factory=dict)

    def plus(self, later: "Row") -> "Row":
        """Both together."""
        sums = {name: getattr(self, name) + getattr(later, name) for name in SUMS}
        return Row(
            start_s=min(self.start_s, later.start_s),
            end_s=max(self.end_s, later.end_s),
            stood_replica_s=_added(self.stood_replica_s, later.stood_replica_s),
            planned_replica_s=_added(self.planned_replica_s, later.planned_replica_s),
            **sums,
        )

    def dump(self) -> dict[str, Any]:
        """JSON data."""
        replicas = (self.stood_replica_s, self.planned_replica_s)
        return {
            "t": [round(self.start_s, 3), round(self.end_s, 3)],
            "sums": [round(getattr(self, name), 3) for name in SUMS],
            "replicas": [{str(role): round(each, 3) for role, each in part.items()} for part in replicas],
        }

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> "Row":
        """What `dump` wrote. ValueError, KeyError or TypeError for something else."""
        (start_s, end_s), sums = data["t"], [float(value) for value in data["sums"]]
        stood, planned = ({Role(role): float(n) for role, n in part.items()} for part in data["replicas"])
        return cls(
            start_s=float(start_s),
            end_s=float(end_s),
            stood_replica_s=stood,
            planned_replica_s=planned,
            **dict(zip(SUMS, sums, strict=True)),
        )


assert {item.name for item in fields(Row)} >= set(SUMS)


def _added(one: Mapping[Role, float], other: Mapping[Role, float]) -> dict[Role, float]:
    return {role: one.get(role, 0.0) + other.get(role, 0.0) for role in Role if role in one or role in other}


def total(rows: Iterable[Row]) -> Row | None:
    """All together; None of none."""
    found: Row | None = None
    for row in rows:
        found = row if found is None else found.plus(row)
    return found


def hour_of(row: Row) -> int:
    """The hour that a row ends in, since 1970."""
    return int(row.end_s // HOUR_S)


@dataclass(frozen=True, slots=True)
class Ledger:
    """Rows of single intervals, and before those of whole hours, in order of time."""

    hours: Sequence[Row] = ()
    rows: Sequence[Row] = ()

    def add(self, row: Row, fine: int = FINE) -> "Ledger":
        """With one more interval; the oldest hour is put together once there are more than `fine`."""
        rows = [*self.rows, row]
        if len(rows) <= fine:
            return replace(self, rows=rows)
        first = hour_of(rows[0])
        count = next((n for n, each in enumerate(rows) if hour_of(each) != first), len(rows) - 1) or 1
        summed = total(rows[:count])
        assert summed is not None
        hours = list(self.hours)
        if hours and hour_of(hours[-1]) == first:
            summed = hours.pop().plus(summed)
        return Ledger(hours=[*hours, summed][-COARSE:], rows=rows[count:])

    def since(self, at_s: float) -> list[Row]:
        """Rows of which the larger part is later, hours first."""
        return [row for row in (*self.hours, *self.rows) if (row.start_s + row.end_s) / 2.0 >= at_s]
