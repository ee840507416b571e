"""Routings on unlike loads: goodput, attainment, shed share, tails and prefix hits, cell by cell.

    python -m benchmarks routings --data DIR [--only WORDS] [--loads 70,90,110] [--duration S] [--seeds N]
        [--routings slo,pull,…] [--learn] [--json FILE] [--before FILE] [--workers N]
    python -m benchmarks routings --plot docs/img/collapse.svg

A cell is a load, pools (mixed, split) and promises: `classes` (40 % critical and interactive, 60 % batch) or
`plain` (one SLO for all). Each is a `headway compare --routings` on 4 replicas: the same requests for all. A
load is cut to some thousand requests a run, which decides its profile and length. Without --data only what is
generated runs. Prefix caches hold 400,000 tokens of a replica. Engines are as profiled, so nothing is learned
unless --learn. The first routing is judged beside the others:

    of best       goodput over the best routing's, in the same cell at the same load
    tail          TTFT p99 of the requests that met their SLOs, in ms
    hits          prompt tokens found in prefix caches

--plot draws goodput over load instead: whether it collapses from 50 to 500 % of capacity, where all requests
are alike and where lengths are mixed, for all profiles. It needs no data (minutes).
"""

import json as json_format
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from benchmarks.routings_plot import plot as plotted
from benchmarks.routings_table import Row, changes, summary, table
from headway_cli.compare_routings import (
    RoutingComparison,
    RoutingRow,
    compare_routings,
    parse_loads,
)
from headway_cli.errors import CliError
from headway_cli.job import gathered
from headway_cli.job import workers as started
from headway_cli.options import RunOptions, listed

ROUTINGS = "slo,pull,default,least_load,prefix"
LOADS = "70,90,110"
SEEDS = 2
QUICK_PROFILE, LONG_PROFILE = "llama-3.1-70b_a100_tp4", "llama-3.1-70b_h100_tp4"
CACHE_TOKENS = 400_000


def _slo(plain: tuple[float, float], interactive: tuple[float, float], batch: tuple[float, float]) -> Any:  # noqa: ANN401 - settings
    """Promises from pairs of TTFT and TPOT in ms."""
    chat, long = ({"ttft_ms": ttft_ms, "tpot_ms": tpot_ms} for ttft_ms, tpot_ms in (interactive, batch))
    classes = {"interactive": {**chat, "critical": True, "share": 0.4}, "batch": {**long, "share": 0.6}}
    return {"ttft_ms": plain[0], "itl_ms": plain[1], "classes": classes}


# Those of examples/slo-classes.yaml, two and a half times as long on engines that are so much slower.
USUAL = _slo((5000, 125), (2500, 100), (25_000, 250))
LONG = _slo((5000, 40), (3000, 30), (30_000, 100))
"""Those of examples/slo-classes-long.yaml."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A load of the grid: a file of --data, or a specification; the split fleet suits its prompts."""

    source: str
    start_s: float = 0.0
    duration_s: float
    profile: str = QUICK_PROFILE
    slo: Mapping[str, Any] = field(default_factory=lambda: USUAL)
    split: str = "prefill=2,decode=2"
    loads: str = LOADS

    @property
    def generated(self) -> bool:
        """True if it needs no file."""
        return ":" in self.source


GRID: Mapping[str, Load] = {
    "azure_conv": Load(source="azure2023_conv.csv.gz", duration_s=300.0),
    "mooncake": Load(
        source="mooncake_conversation_hash_ids.jsonl.gz",
        duration_s=900.0,
        profile=LONG_PROFILE,
        slo=LONG,
        split="prefill=3,decode=1",
    ),
    "servegen": Load(
        source="servegen_r1_1d_full.csv.gz", start_s=36_000.0, duration_s=600.0, split="prefill=1,decode=3"
    ),
    "aibrix_8min": Load(source="aibrix_8min_up_and_down.csv.gz", duration_s=480.0),
    # Rates are above what the fleet does at 110 %: a load is thinned, never superposed, which would blur it.
    "onoff": Load(
        source="onoff:rate_rps=4,peak_rps=120,on_s=8,every_s=60,input_cv=0.8,output_cv=0.8,seed=11",
        duration_s=300.0,
    ),
    "prefixes20": Load(
        source="steady:rate_rps=60,prefixes=20,prefix_tokens=2048,input_tokens=300,output_tokens=150,seed=12",
        duration_s=300.0,
        split="prefill=3,decode=1",
        loads="70,110,300",
    ),
    "agents": Load(
        source="steady:rate_rps=40,turns=8,turn_gap_s=15,prefixes=4,prefix_tokens=2048,prefix_zipf=1,"
        "input_tokens=400,input_cv=1,output_tokens=150,seed=13",
        duration_s=300.0,
        split="prefill=3,decode=1",
        loads="70,110,200",
    ),
}
_PLOTTED = "steady:rate_rps=60,input_tokens=1000,output_tokens=100,seed=5"
STEEP: Mapping[str, Load] = {
    title: Load(
        source=f"{_PLOTTED},input_cv={spread},output_cv={spread}",
        duration_s=20.0,
        profile="llama-3.1-8b_h100_tp1",
        slo=_slo((1000, 30), (1000, 30), (1000, 30)),
        loads="50,75,90,100,110,125,150,200,300,400,500",
    )
    for title, spread in (("all requests alike", 0), ("mixed lengths", 1))
}
"""Those of --plot, by title."""
ALL_ROUTINGS = "slo,default,least_load,prefix,pull,random,round_robin,bin_pack,pull_bin_pack"
POOLS = ("mixed", "split")
PROMISES = ("classes", "plain")
WORDS = (*GRID, *POOLS, *PROMISES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One comparison of the grid."""

    name: str
    pools: str
    promises: str

    @property
    def words(self) -> tuple[str, ...]:
        """Those of WORDS that --only may name to have it."""
        return (self.name, self.pools, self.promises)

    @property
    def load(self) -> Load:
        """The load of the grid that it has."""
        return {**GRID, **STEEP}[self.name]

    @property
    def fleet(self) -> str:
        """As `headway compare --fleet` takes it."""
        return "mixed=4" if self.pools == "mixed" else self.load.split

    def settings(self, *, learn: bool) -> dict[str, Any]:
        """The deployment."""
        slo = dict(self.load.slo)
        if self.promises == "plain":
            del slo["classes"]
        pools = ("mixed",) if self.pools == "mixed" else ("prefill", "decode")
        return {
            "slo": slo,
            "engine": {"profile": self.load.profile, "prefix_cache_tokens": CACHE_TOKENS},
            "pools": {role: {"min_replicas": 1, "max_replicas": 8} for role in pools},
            "routing": {"prediction": {"learn": learn}},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of every cell."""

    data: Path | None
    directory: Path
    routings: tuple[str, ...]
    loads: str | None
    duration_s: float | None
    seeds: int
    learn: bool

    def comparison(self, cell: Cell) -> RoutingComparison:
        """The cell as `headway compare` has it."""
        load, place = cell.load, self.directory / "settings.json"
        place.write_text(json_format.dumps(cell.settings(learn=self.learn)), encoding="utf-8")
        seconds = min(load.duration_s, self.duration_s or load.duration_s)
        if load.generated:
            source, options = f"{load.source},duration_s={seconds:g}", RunOptions(config=str(place))
        else:
            source = str((self.data or Path()) / "traces" / load.source)
            options = RunOptions(config=str(place), start=load.start_s, duration=seconds)
        return RoutingComparison(
            trace=source,
            options=options,
            fleet=cell.fleet,
            routings=self.routings,
            loads=parse_loads(self.loads or load.loads),
            seeds=self.seeds,
            jobs=1,
        )


def main(
    data: Path | None,
    *,
    only: str = "",
    loads: str | None = None,
    duration: float | None = None,
    seeds: int = SEEDS,
    routings: str | None = None,
    learn: bool = False,
    json: Path | None = None,
    before: Path | None = None,
    plot: Path | None = None,
    workers: int | None = None,
) -> int:
    """Run the grid, or some of it, and print table and summary."""
    if plot is not None:
        cells = [Cell(name=name, pools="mixed", promises="plain") for name in STEEP]
    else:
        cells = list(chosen_cells(only, has_data=data is not None))
    if data is None and plot is None:
        print("without --data DIR only generated loads run")
    if not cells:
        raise CliError(f"--only: no cell has {only!r}{' without --data' if data is None else ''}")
    began, rows = perf_counter(), list[Row]()
    with TemporaryDirectory() as directory, runner(workers) as run:
        question = Question(
            data=data,
            directory=Path(directory),
            routings=listed("--routings", routings or (ALL_ROUTINGS if plot else ROUTINGS)),
            loads=loads,
            duration_s=duration,
            seeds=seeds,
            learn=learn,
        )
        for number, cell in enumerate(cells, 1):
            report = compare_routings(question.comparison(cell), run)
            rows += [row_of(cell, each) for each in report.rows]
            if json is not None:
                # After each cell: a run that is broken off leaves those that it has.
                json.write_text(json_format.dumps([asdict(row) for row in rows], indent=1), "utf-8")
            print(f"{number} of {len(cells)}: {'/'.join(cell.words)}", file=sys.stderr, flush=True)
    print("\n".join(table(rows)))
    print("\n".join(summary(rows, judged=question.routings[0])))
    if plot is not None:
        plot.write_text(plotted(rows, list(STEEP)), "utf-8")
    if before is not None:
        print("\n".join(changes([Row(**each) for each in json_format.loads(before.read_text())], rows)))
    print(f"took {perf_counter() - began:.0f} s")
    return 0


def chosen_cells(only: str, *, has_data: bool) -> Iterator[Cell]:
    """Those with one of the words; `a+b` asks for both. CliError where a word is none of theirs."""
    wanted = [tuple(filter(None, word.split("+"))) for word in only.split(",") if word]
    if strangers := [word for words in wanted for word in words if word not in WORDS]:
        raise CliError(f"--only: no cell has {strangers[0]!r}; known: {', '.join(WORDS)}")
    for name, load in GRID.items():
        for pools in POOLS:
            for promises in PROMISES:
                cell = Cell(name=name, pools=pools, promises=promises)
                asked = not wanted or any(set(words) <= set(cell.words) for words in wanted)
                if asked and (has_data or load.generated):
                    yield cell


@contextmanager
def runner(count: int | None) -> Iterator[Callable[..., list[Any]]]:
    """Makes calls in processes that stay from cell to cell, since each compiles once."""
    with ExitStack() as stack:
        pool = stack.enter_context(started(count or os.cpu_count() or 1))
        yield partial(_run, pool)


def _run(pool: Any, calls: Sequence[Callable[[], Any]]) -> list[Any]:  # noqa: ANN401 - the outcome is the calls'
    return gathered(pool, calls, lambda _: None)


def row_of(cell: Cell, row: RoutingRow) -> Row:
    """The figures that are kept of a row."""
    return Row(
        cell="/".join(cell.words),
        load=row.load,
        routing=row.routing,
        goodput_rps=row.goodput_rps.mean or 0.0,
        sd_rps=row.goodput_rps.sd,
        attainment=row.attainment.mean,
        shed_share=row.shed_share.mean,
        tail_s=row.ttft_met_p99_s.mean,
        hit_rate=row.prefix_hit_rate.mean,
    )
