"""`headway recommend`: the deployment that meets the SLO on a trace at the least cost.

All profiles and settings are checked in this process before any other starts. A profile that cannot be read
ends the command: left out in silence it could have been the cheapest.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import isfinite, nan
from pathlib import Path
from typing import Annotated, TypeVar

from headway.config import HeadwayConfig, load_config
from headway.simulation.report import ReportSlo
from headway.workload import TraceOptions, open_trace
from headway_cli.errors import CliError
from headway_cli.flags import option, spread
from headway_cli.job import ANY_LOAD, Job, execute, gathered, opened, trace_figures, workers
from headway_cli.notes import say_notes
from headway_cli.options import (
    DECIMAL,
    Attainment,
    Duration,
    Itl,
    Jobs,
    Start,
    TraceArgument,
    TraceFormat,
    Ttft,
    flagged,
    listed,
    process_count,
)
from headway_cli.output import JsonFile, ReportFile, check_outputs, deliver, write_text
from headway_cli.terminal import Report, announce_compilation, bar
from headway_studies.commands.recommend_page import render
from headway_studies.commands.recommend_view import (
    Recommendation,
    document,
    nothing_found,
    print_recommendation,
)
from headway_studies.recommend.candidates import Base, Candidate, Mode, candidates, engine_choices, priced
from headway_studies.recommend.fleets import Fleet
from headway_studies.recommend.search import Found, chosen, evaluated
from headway_studies.recommend.trials import Facts, Outcome, facts, fixed, followed

T = TypeVar("T")

SLO_FLAGS = ("ttft_ms", "itl_ms", "attainment")
OVERRIDING = (*SLO_FLAGS, "start_up_delay", "max_gpu_budget", "prefix_cache_tokens", "seed")
"""The flags that set keys of the configuration."""
CHUNKS = "512,2048,8192"
MODES = "mixed,split"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendOptions:
    """The flags; None means "not given": the configuration decides."""

    profiles: Annotated[
        str | None,
        option(
            "DIR,DIR,…",
            "Profiles to choose among: directories, or names of embedded ones; else those of gpu_types.",
        ),
    ] = None
    ttft_ms: Ttft = None
    itl_ms: Itl = None
    attainment: Attainment = None
    modes: Annotated[str, option("LIST", "Of mixed (one pool) and split (prefill and decode).")] = MODES
    chunks: Annotated[
        str | None,
        option("LIST", f"Chunk sizes of mixed replicas; else engine.chunk_tokens, or {CHUNKS}."),
    ] = None
    gpu_prices: Annotated[
        str | None,
        option("NAME=USD,…", "Per GPU-hour, by profile or GPU type; without it GPU-hours count."),
    ] = None
    config: Annotated[str | None, option("FILE", "Settings (YAML) whose other keys all candidates have.")] = (
        None
    )
    start_up_delay: Annotated[float | None, option("S", "Mean seconds until a new replica is ready.")] = None
    max_gpu_budget: Annotated[
        int | None,
        option("N", "GPUs that all pools together may occupy.", "--max-gpu-budget", "--max-gpus"),
    ] = None
    prefix_cache_tokens: Annotated[int | None, option("N", "Tokens in the prefix cache of each replica.")] = (
        None
    )
    rate_scale: Annotated[float, option("K", "Superpose K shifted copies of the trace.")] = 1.0
    start: Start = 0.0
    duration: Duration = None
    trace_format: TraceFormat = None
    seed: Annotated[int | None, option("N", "Seed of what is drawn.")] = None

    def base(self) -> Base:
        """The configuration that all candidates share."""
        return Base(file=self.config, overrides=flagged(self, OVERRIDING))

    def reading(self, seed: int) -> TraceOptions:
        """The reading of the trace."""
        return TraceOptions(
            format=self.trace_format,
            start_s=self.start,
            duration_s=self.duration,
            rate_scale=self.rate_scale,
            seed=seed,
        )


@spread(RecommendOptions)
def recommend(
    *,
    options: RecommendOptions,
    trace: TraceArgument,
    json: JsonFile = None,
    report: ReportFile = None,
    write: Annotated[
        str | None, option("FILE", "Write the recommended configuration (YAML), to start from.")
    ] = None,
    jobs: Jobs = None,
) -> None:
    """Choose engine, mode, chunk size, policy and fleet for a trace: the least cost, simulated."""
    processes = process_count(jobs)
    check_outputs({"--json": json, "--report": report, "--write": write}, (trace, options.config))
    found = recommendation(trace, options, processes)
    if write is not None and found.choice is not None:
        write_text(Path(write), found.configuration())
    out = deliver(json, report, lambda: document(found), lambda: render(document(found)))
    print_recommendation(found, out)
    if found.choice is None:
        raise CliError(nothing_found(found))


def recommendation(trace: str, options: RecommendOptions, processes: int) -> Recommendation:
    """Try all candidates on the trace. Errors are one line that names flag, file or key."""
    base = options.base()
    config = base.config()
    choices = engine_choices(base, listed("--profiles", options.profiles) if options.profiles else ())
    if not choices:
        raise CliError("--profiles: none given, and the configuration has no gpu_types to choose among")
    prices = _prices(options.gpu_prices)
    tried = candidates(base, priced(choices, prices), _modes(options.modes), _chunks(options.chunks, config))
    reading = options.reading(config.simulation.seed)
    with open_trace(trace, reading) as opening:
        say_notes(opening)
        figures = trace_figures(opening, trace, reading)
    announce_compilation()
    # Compiles what is not in the cache yet, before several processes would.
    for role in ("mixed", "prefill"):
        execute(Job(trace=ANY_LOAD, config=load_config(None, {"pools": {role: {}}})))
    with workers(processes) as pool, bar("recommending") as tell:
        runs = Processes(pool=pool, trace=trace, reading=reading, total=2 * len(tried), tell=tell)
        rows = evaluated(tried, config.slo.attainment, runs)
    slo = ReportSlo(ttft_s=config.slo.ttft_s, itl_s=config.slo.itl_s, attainment=config.slo.attainment)
    return Recommendation(
        source=trace,
        reading=reading,
        trace=figures,
        slo=slo,
        rows=rows,
        choice=chosen(rows),
        unit="cost" if prices or not options.profiles else "GPU-hours",
    )


@dataclass(slots=True, kw_only=True)
class Processes:
    """The trials, spread over processes; `tell` shows how many of `total` simulated ones have ended."""

    pool: ProcessPoolExecutor
    trace: str
    reading: TraceOptions
    total: int
    tell: Report | None
    done: int = 0

    def facts(self, candidates: Sequence[Candidate]) -> Sequence[Facts]:
        """What can be told without simulating."""
        calls = [partial(_facts, self.trace, self.reading, one) for one in candidates]
        return gathered(self.pool, calls, lambda done: None)

    def fixed(self, candidates: Sequence[tuple[Candidate, Facts]]) -> Sequence[Found]:
        """The least fixed fleets."""
        return self._counted([partial(_fixed, self.trace, self.reading, *one) for one in candidates])

    def followed(self, candidates: Sequence[tuple[Candidate, Facts, Fleet]]) -> Sequence[Outcome]:
        """The policy on each."""
        return self._counted([partial(_followed, self.trace, self.reading, *one) for one in candidates])

    def _counted(self, calls: Sequence[Callable[[], T]]) -> Sequence[T]:
        def ended(done: int) -> None:
            if self.tell:
                self.tell(self.done + done, self.total)

        results = gathered(self.pool, calls, ended)
        self.done += len(calls)
        return results


def _facts(trace: str, reading: TraceOptions, candidate: Candidate) -> Facts:
    return facts(candidate, opened(trace, reading))


def _fixed(trace: str, reading: TraceOptions, candidate: Candidate, known: Facts) -> Found:
    return fixed(candidate, known, opened(trace, reading))


def _followed(trace: str, reading: TraceOptions, candidate: Candidate, known: Facts, fleet: Fleet) -> Outcome:
    return followed(candidate, known, fleet, opened(trace, reading))


def _modes(text: str) -> list[Mode]:
    try:
        return [Mode(item) for item in listed("--modes", text)]
    except ValueError:
        raise CliError(f"--modes: expected mixed, split or both, got {text!r}") from None


def _chunks(text: str | None, config: HeadwayConfig) -> list[int]:
    """The chunk sizes of mixed replicas."""
    if text is None and config.engine.chunk_tokens is not None:
        return [config.engine.chunk_tokens]
    items = listed("--chunks", CHUNKS if text is None else text)
    if wrong := next((item for item in items if not DECIMAL.fullmatch(item) or int(item) < 1), None):
        raise CliError(f"--chunks: expected tokens such as {CHUNKS}, got {wrong!r}")
    return [int(item) for item in items]


def _prices(text: str | None) -> dict[str, float]:
    """`h100=3.0,a100=1.4` as a mapping."""
    prices: dict[str, float] = {}
    for pair in listed("--gpu-prices", text) if text is not None else ():
        name, _, value = (part.strip() for part in pair.rpartition("="))
        try:
            price = float(value)
        except ValueError:
            price = nan
        if not name or not (isfinite(price) and price > 0):
            raise CliError(f"--gpu-prices: expected NAME=USD such as h100=3.0, got {pair!r}")
        if name in prices:
            raise CliError(f"--gpu-prices: {name} is given twice")
        prices[name] = price
    return prices
