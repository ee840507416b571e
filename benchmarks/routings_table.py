"""Rows of the benchmark of routings: as a table, summed up, and beside those of an earlier run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

Key = tuple[str, float, str]
NEAR = 0.98
LEAST_HITS = 0.02
"""Below this share of hits nothing is said of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One routing in one cell at one load: means over the seeds, and the deviation of goodput."""

    cell: str
    load: float
    routing: str
    goodput_rps: float
    sd_rps: float | None
    attainment: float | None
    shed_share: float | None
    tail_s: float | None
    hit_rate: float | None

    @property
    def place(self) -> tuple[str, float]:
        """Cell and load."""
        return self.cell, self.load

    def document(self) -> dict[str, Any]:
        """JSON-able data."""
        return asdict(self)


Places = Mapping[tuple[str, float], Mapping[str, Row]]


def by_place(rows: Iterable[Row]) -> Places:
    """The routings of each cell at each load."""
    found: dict[tuple[str, float], dict[str, Row]] = {}
    for row in rows:
        found.setdefault(row.place, {})[row.routing] = row
    return found


def table(rows: Sequence[Row]) -> Iterator[str]:
    """One row a routing."""
    yield "| load | at | routing | goodput/s | of best | attained | shed | tail ms | hits |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for (cell, load), routings in by_place(rows).items():
        best = _best(routings)
        for row in routings.values():
            deviation = "" if row.sd_rps is None else f" ± {row.sd_rps:.2g}"
            yield (
                f"| {cell} | {load:.0%} | {row.routing} | {row.goodput_rps:.4g}{deviation} | "
                f"{_ratio(row.goodput_rps, best)} | {_percent(row.attainment)} | "
                f"{_percent(row.shed_share)} | {_ms(row.tail_s)} | {_percent(row.hit_rate)} |"
            )


def summary(rows: Sequence[Row], *, judged: str) -> Iterator[str]:
    """In how many places each routing is best or near it, and the judged one beside the others."""
    places = by_place(rows)
    yield f"\n{len(places)} places (cell and load)"
    for name in dict.fromkeys(row.routing for row in rows):
        shares = {place: found[name].goodput_rps / best for place, found, best in _goodputs(places)}
        first = sum(share >= 1.0 for share in shares.values())
        near = sum(share >= NEAR for share in shares.values())
        yield f"  {name:12s} best in {first}, within 2 % in {near}; {_extremes(shares, least=True)}"
    yield f"{judged} beside others, by place"
    for other in dict.fromkeys(row.routing for row in rows if row.routing != judged):
        ratios = {
            place: found[judged].goodput_rps / found[other].goodput_rps
            for place, found in places.items()
            if found[other].goodput_rps
        }
        below = sum(ratio < 1.0 for ratio in ratios.values())
        yield f"  goodput over {other}'s: below in {below}; {_extremes(ratios, least=True)}"
    yield from _tails(places, judged, "default")
    yield from _hits(places, judged, "prefix")


def _goodputs(places: Places) -> Iterator[tuple[tuple[str, float], Mapping[str, Row], float]]:
    for place, found in places.items():
        if best := _best(found):
            yield place, found, best


def _best(routings: Mapping[str, Row]) -> float:
    return max(row.goodput_rps for row in routings.values())


def _tails(places: Places, judged: str, other: str) -> Iterator[str]:
    ratios = {
        place: found[judged].tail_s / found[other].tail_s
        for place, found in places.items()
        if other in found and found[judged].tail_s and found[other].tail_s
    }
    if ratios:
        above = sum(ratio > 1.5 for ratio in ratios.values())
        yield f"  tail over {other}'s: above 1.5 in {above}; {_extremes(ratios, least=False)}"


def _hits(places: Places, judged: str, other: str) -> Iterator[str]:
    ratios = {
        place: found[judged].hit_rate / found[other].hit_rate
        for place, found in places.items()
        if other in found and found[other].hit_rate > LEAST_HITS
    }
    if ratios:
        below = sum(ratio < 0.9 for ratio in ratios.values())
        yield f"  hits over {other}'s: below 0.9 in {below} of {len(ratios)}; {_extremes(ratios, least=True)}"


def _extremes(ratios: Mapping[tuple[str, float], float], *, least: bool) -> str:
    if not ratios:
        return "nothing to compare"
    worst = (min if least else max)(ratios, key=lambda place: ratios[place])
    where = f"{worst[0]} at {worst[1]:.0%}"
    return f"median {median(ratios.values()):.3f}, worst {ratios[worst]:.3f} ({where})"


def changes(before: Sequence[Row], after: Sequence[Row]) -> Iterator[str]:
    """Old and new side by side, where both have the row."""
    known: Mapping[Key, Row] = {(*row.place, row.routing): row for row in before}
    yield "\n| load | at | routing | goodput/s before → after | × | attained | shed | tail ms | hits |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in after:
        old = known.get((*row.place, row.routing))
        if old is not None:
            yield (
                f"| {row.cell} | {row.load:.0%} | {row.routing} | "
                f"{old.goodput_rps:.4g} → {row.goodput_rps:.4g} | "
                f"{_ratio(row.goodput_rps, old.goodput_rps)} | "
                f"{_percent(old.attainment)} → {_percent(row.attainment)} | "
                f"{_percent(old.shed_share)} → {_percent(row.shed_share)} | "
                f"{_ms(old.tail_s)} → {_ms(row.tail_s)} | "
                f"{_percent(old.hit_rate)} → {_percent(row.hit_rate)} |"
            )


def _ratio(value: float, base: float) -> str:
    return f"{value / base:.3f}" if base else "n/a"


def _percent(share: float | None) -> str:
    return "n/a" if share is None else f"{share:.1%}"


def _ms(seconds: float | None) -> str:
    return "n/a" if seconds is None else f"{seconds * 1e3:,.0f}"
