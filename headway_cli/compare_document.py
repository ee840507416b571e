"""A comparison of policies as a document: what all rows share once, and each row without its decisions.

    comparison.document()           writes it
    parse_comparison(document)      reads it

A row is a simulation's result without what is shared; of its intervals it keeps columns that a chart needs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway.simulation.report import Interval, ReportError, SimulationReport, parse_report

AUTO = "static:auto"
SHARED = ("profile", "trace", "slo", "routing", "seed", "attainable")
LEFT_OUT = ("intervals", "minutes", "utilisation")
LATENCIES = {"ttft_p99_s": "ttft_s", "itl_p99_s": "itl_s"}
COLUMNS = ("start_s", "end_s", "requests", "attainment", *LATENCIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyComparison:
    """The reports of the policies by label, and beside them the best fixed fleets of a sweep, cheapest first.

    `fixed_tried` is how many fleets the sweep had, `fleets_tried` how many the search of `static:auto` had,
    by label. `price_per_gpu_hour` is None where it is not known.
    """

    policies: Mapping[str, SimulationReport]
    fixed: Mapping[str, SimulationReport] = field(default_factory=dict)
    fixed_tried: int = 0
    fleets_tried: Mapping[str, int] = field(default_factory=dict)
    price_per_gpu_hour: float | None = None
    currency: str = ""

    @property
    def first(self) -> SimulationReport:
        """One of the reports, for what they share."""
        return next(iter(self.policies.values()))

    def document(self) -> dict[str, Any]:
        """JSON-able data: what all rows share, `policies`, with a sweep `static_pareto`, and the price."""
        first = self.first.document()
        document = {key: first[key] for key in SHARED}
        document["policies"] = [
            self._row(label, report) | {"intervals": _columns(report.intervals)}
            for label, report in self.policies.items()
        ]
        if self.fixed:
            document["static_fleets_tried"] = self.fixed_tried
            document["static_pareto"] = [self._row(label, report) for label, report in self.fixed.items()]
        if self.price_per_gpu_hour is not None:
            document |= {"price_per_gpu_hour": self.price_per_gpu_hour, "currency": self.currency}
        return document

    def _row(self, label: str, report: SimulationReport) -> dict[str, Any]:
        row = {key: value for key, value in report.document().items() if key not in (*SHARED, *LEFT_OUT)}
        tried = self.fleets_tried.get(label)
        return {"label": label, **row} | ({} if tried is None else {"fleets_tried": tried})


def _columns(intervals: Sequence[Interval]) -> dict[str, list[float | None]]:
    plain = {name: [getattr(row, name) for row in intervals] for name in COLUMNS if name not in LATENCIES}
    return plain | {name: [getattr(row, key).p99 for row in intervals] for name, key in LATENCIES.items()}


def parse_comparison(document: Mapping[str, Any]) -> PolicyComparison:
    """The comparison in JSON data; ReportError names what is missing or wrong."""
    rows = _rows(document, "policies")
    if not rows:
        raise ReportError("policies: has no row")
    price, currency = parse_price(document)
    return PolicyComparison(
        policies=dict(_parsed(document, "policies", place, row) for place, row in enumerate(rows)),
        fixed=dict(
            _parsed(document, "static_pareto", place, row)
            for place, row in enumerate(_rows(document, "static_pareto"))
        ),
        fixed_tried=int(document.get("static_fleets_tried", 0)),
        fleets_tried={row["label"]: row["fleets_tried"] for row in rows if "fleets_tried" in row},
        price_per_gpu_hour=price,
        currency=currency,
    )


def parse_price(document: Mapping[str, Any]) -> tuple[float | None, str]:
    """The price of a GPU-hour, None where it is unknown, and its currency. ReportError if it is no number."""
    price = document.get("price_per_gpu_hour")
    if price is not None and not isinstance(price, int | float):
        raise ReportError("price_per_gpu_hour: is not a number")
    return price, str(document.get("currency", ""))


def _rows(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    rows = document.get(key, [])
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise ReportError(f"{key}: is not a list of rows")
    return rows


def _parsed(
    document: Mapping[str, Any], key: str, place: int, row: Mapping[str, Any]
) -> tuple[str, SimulationReport]:
    shared = {name: document[name] for name in SHARED if name in document}
    label = row.get("label")
    if not isinstance(label, str):
        raise ReportError(f"{key}.{place}.label is missing or no text")
    try:
        return label, parse_report({**shared, **row, "intervals": _intervals(row.get("intervals"))})
    except ReportError as error:
        raise ReportError(f"{key}.{place}: {error}") from error


def _intervals(columns: object) -> list[dict[str, Any]]:
    """Rows as a simulation's result has them, without decisions; none where a document has no columns."""
    if columns is None:
        return []
    if not isinstance(columns, Mapping) or not all(isinstance(columns.get(name), list) for name in COLUMNS):
        raise ReportError(f"intervals: should be columns {', '.join(COLUMNS)}")
    if len({len(columns[name]) for name in COLUMNS}) > 1:
        raise ReportError("intervals: lists of different lengths")
    nothing: dict[str, Any] = {"forecast": None, "targets": {}, "reasons": {}}
    unknown = dict.fromkeys(("mean", "p50", "p95"))
    found = []
    for values in zip(*(columns[name] for name in COLUMNS), strict=True):
        row = dict(zip(COLUMNS, values, strict=True))
        late = {key: {**unknown, "p99": row.pop(name)} for name, key in LATENCIES.items()}
        found.append({**row, **late, **nothing})
    return found
