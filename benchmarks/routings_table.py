"""Rows of the benchmark of routings: as a table, summed up, and beside those of an earlier run."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

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
                f"{_ratio(row.goodput_rps, best)} | {' | '.join(_figures(row))} |"
            )


def summary(rows: Sequence[Row], *, judged: str) -> Iterator[str]:
    """In how many places each routing is best or near it, and the judged one beside the others."""
    places = by_place(rows)
    yield f"\n{len(places)} places (cell and load)"
    for name in dict.fromkeys(row.routing for row in rows):
        shares = {
            place: found[name].goodput_rps / best for place, found in places.items() if (best := _best(found))
        }
        first = sum(share >= 1.0 for share in shares.values())
        near = sum(share >= NEAR for share in shares.values())
        yield f"  {name:12s} best in {first}, within 2 % in {near}; {_extremes(shares, least=True)}"
    yield f"{judged} beside others, by place"
    for other in dict.fromkeys(row.routing for row in rows if row.routing != judged):
        ratios = _over(places, judged, other, lambda row: row.goodput_rps)
        below = sum(ratio < 1.0 for ratio in ratios.values())
        yield f"  goodput over {other}'s: below in {below}; {_extremes(ratios, least=True)}"
    if tails := _over(places, judged, "default", lambda row: row.tail_s or None):
        above = sum(ratio > 1.5 for ratio in tails.values())
        yield f"  tail over default's: above 1.5 in {above}; {_extremes(tails, least=False)}"
    if hits := _over(places, judged, "prefix", lambda row: row.hit_rate, more_than=LEAST_HITS):
        below = sum(ratio < 0.9 for ratio in hits.values())
        yield f"  hits over prefix's: below 0.9 in {below} of {len(hits)}; {_extremes(hits, least=True)}"


def _over(
    places: Places,
    judged: str,
    other: str,
    figure: Callable[[Row], float | None],
    more_than: float = 0.0,
) -> Mapping[tuple[str, float], float]:
    """A figure of the judged routing over the other's, by place, where that has `more_than` of it."""
    ratios = {}
    for place, found in places.items():
        own, base = figure(found[judged]), figure(found[other]) if other in found else None
        if own is not None and base is not None and base > more_than:
            ratios[place] = own / base
    return ratios


def _best(routings: Mapping[str, Row]) -> float:
    return max(row.goodput_rps for row in routings.values())


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
            pairs = zip(_figures(old), _figures(row), strict=True)
            yield (
                f"| {row.cell} | {row.load:.0%} | {row.routing} | "
                f"{old.goodput_rps:.4g} → {row.goodput_rps:.4g} | "
                f"{_ratio(row.goodput_rps, old.goodput_rps)} | "
                f"{' | '.join(f'{one} → {other}' for one, other in pairs)} |"
            )


def _figures(row: Row) -> Sequence[str]:
    """Attained, shed, tail and hits."""
    shares = (row.attainment, row.shed_share, row.hit_rate)
    attained, shed, hits = ("n/a" if share is None else f"{share:.1%}" for share in shares)
    tail = "n/a" if row.tail_s is None else f"{row.tail_s * 1e3:,.0f}"
    return attained, shed, tail, hits


def _ratio(value: float, base: float) -> str:
    return f"{value / base:.3f}" if base else "n/a"
