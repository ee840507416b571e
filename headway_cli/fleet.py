"""What came of a fleet in virtual time: of its deployments, and of one way to use the budget or several."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.engine.kernel.prefill import COPY_SHIFT
from headway.simulation.report import SimulationReport, parse_report
from headway.simulation.results import SimulationResult
from headway.workload import Trace
from headway.workload.spool import RECORD, Records
from headway_cli.page.series import gpus_over_time

HARDLY_MORE = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentUse:
    """One deployment's part in a budget: its report, and the requests that it lost."""

    name: str
    priority: int
    weight: float
    lost: int
    report: SimulationReport
    spilled: "Spilled | None" = None

    @property
    def attained(self) -> float:
        """Of what any fleet attains."""
        return (self.report.attainment or 0.0) / (self.report.attainable or 1.0)

    def keeps(self, other: "DeploymentUse") -> bool:
        """Whether it keeps its promise, or misses it by hardly more than another run did."""
        lost, before = 1.0 - self.attained, 1.0 - other.attained
        return lost <= max(1.0 - self.report.slo.attainment, HARDLY_MORE * before)


class Spilled(NamedTuple):
    """What one deployment had no place for, as the trace of another: requests, prefix blocks, span."""

    records: Records
    blocks: NDArray[np.int64]
    span_s: float

    @classmethod
    def of(cls, result: SimulationResult, trace: Trace) -> "Spilled":
        """Those of one run, at the times when they were turned away."""
        found, records = result.spilled, np.zeros(len(result.spilled), RECORD)
        for name in ("input_tokens", "output_tokens", "block_count"):
            records[name] = found[name]
        records["arrival_s"] = found["finished_s"]
        records["block_start"] = np.cumsum(found["block_count"]) - found["block_count"]
        own = [
            trace.blocks[start : start + count] + (int(copy) << COPY_SHIFT)
            for start, count, copy in zip(*(found[name] for name in BLOCKS), strict=True)
            if count
        ]
        return cls(records, np.concatenate([np.empty(0, np.int64), *own]), trace.duration_s)


BLOCKS = ("block_start", "block_count", "copy")


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetUse:
    """One way to use the budget, and what came of it; `parts` are those of a budget that is split, `file`
    says what else it is.
    """

    deployments: Sequence[DeploymentUse]
    parts: Mapping[str, int] | None = None
    file: str | None = None

    @property
    def requests(self) -> int:
        """Requests of all deployments."""
        return sum(one.report.requests for one in self.deployments)

    @property
    def lost(self) -> int:
        """Those that did not meet their SLOs."""
        return sum(one.lost for one in self.deployments)

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of all deployments."""
        return sum(one.report.gpu_hours for one in self.deployments)

    def most_gpus(self) -> float:
        """The most GPUs that were asked for at once."""
        held = [gpus_over_time(one.report) for one in self.deployments]
        times = np.unique(np.concatenate([time_s for time_s, _ in held]))
        total = sum(counts[np.searchsorted(time_s, times, side="right") - 1] for time_s, counts in held)
        return float(np.max(total))

    def document(self) -> dict[str, Any]:
        """JSON-able data; keys are listed in docs/reference/results.md."""
        rows = [
            {key: getattr(one, key) for key in ("name", "priority", "weight", "lost")} | one.report.document()
            for one in self.deployments
        ]
        sums = {"requests": self.requests, "lost": self.lost, "gpu_hours": self.gpu_hours}
        whole = {**sums, "most_gpus": self.most_gpus(), "deployments": rows}
        if self.file is not None:
            return {"file": self.file, **whole}
        return whole if self.parts is None else {"parts": dict(self.parts), **whole}


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReport:
    """A fleet and its common budget, if it has one; where it was asked for, the same in fixed parts, or as
    another file has it.
    """

    gpus: int | None
    whole: BudgetUse
    beside: BudgetUse | None = None
    least: Sequence[str] = ()
    """Of budgets that were looked for, how they were found; a sentence for each."""

    def document(self) -> dict[str, Any]:
        """JSON-able data."""
        whole = {"gpus": self.gpus, **({"least": list(self.least)} if self.least else {})}
        whole |= self.whole.document()
        if self.beside is None:
            return whole
        return {**whole, "split" if self.beside.file is None else "against": self.beside.document()}


def parse_fleet(document: Mapping[str, Any]) -> FleetReport:
    """What `FleetReport.document` wrote; ReportError or KeyError for what is missing or wrong."""
    beside = document.get("split", document.get("against"))
    return FleetReport(
        gpus=document["gpus"],
        whole=_parse_use(document),
        beside=None if beside is None else _parse_use(beside),
        least=document.get("least", ()),
    )


def _parse_use(document: Mapping[str, Any]) -> BudgetUse:
    deployments = [
        DeploymentUse(
            name=row["name"],
            priority=row["priority"],
            weight=row["weight"],
            lost=row["lost"],
            report=parse_report(row),
        )
        for row in document["deployments"]
    ]
    return BudgetUse(deployments=deployments, parts=document.get("parts"), file=document.get("file"))
