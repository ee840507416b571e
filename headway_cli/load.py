"""`headway load`: a trace, replayed against an OpenAI endpoint in an open loop."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from headway.config import HeadwayConfig, load_config
from headway.loadgen import (
    LoadError,
    LoadPlan,
    LoadTally,
    PromptForm,
    ReplayCallbacks,
    ReplayProgress,
    RequestRecord,
    fetch_models,
    fetch_slo,
    replay,
)
from headway.planning import Slo
from headway.words import percent, plural
from headway.workload import Trace, TraceOptions, open_trace
from headway_cli import ALL_FAILED, INTERRUPTED
from headway_cli.control import KEY_VARIABLE, KeyVariable
from headway_cli.errors import CliError
from headway_cli.flags import option, spread, switch
from headway_cli.job import trace_figures
from headway_cli.notes import say_notes
from headway_cli.options import Duration, Start, TraceArgument, TraceFormat, Ttft
from headway_cli.output import JsonFile, ReportFile, check_outputs, deliver
from headway_cli.result_view import print_load
from headway_cli.terminal import error_console

RECORDED = (
    "index", "intended_s", "lag_s", "ttft_s", "tpot_s", "e2e_s", "input_tokens", "requested_tokens",
    "output_tokens", "outcome", "status", "detail",
)  # fmt: skip
"""The keys of a line of --records."""

Watch = Callable[[ReplayProgress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """One replay's settings as flags; latencies in milliseconds, as people write them."""

    model: Annotated[str | None, option("NAME", "The model; default: the first that the server lists.")] = (
        None
    )
    api_key_env: KeyVariable = KEY_VARIABLE
    config: Annotated[str | None, option("FILE", "Settings (YAML) that hold the targets.")] = None
    ttft_ms: Ttft = None
    itl_ms: Annotated[float | None, option("MS", "Target: time per output token.")] = None
    time_scale: Annotated[float, option("K", "Play trace time K times as fast.")] = 1.0
    rate_scale: Annotated[float, option("K", "Superpose K shifted copies of the trace.")] = 1.0
    start: Start = 0.0
    duration: Duration = None
    trace_format: TraceFormat = None
    prompt: Annotated[str, option("FORM", "tokens: arrays of token ids; text: words, about as many.")] = (
        "tokens"
    )
    ignore_eos: Annotated[
        bool, switch("--ignore-eos", "Ask for the whole output length (servers that know it).")
    ] = False
    max_in_flight: Annotated[
        int, option("N", "Beyond N requests at once, count as failed instead of sending.")
    ] = 4096
    timeout: Annotated[float, option("S", "Seconds that one request may take.")] = 600.0
    seed: Annotated[int, option("N", "Seed of prompts and of generated load.")] = 0

    def trace_options(self) -> "TraceOptions":
        """The reading of the trace."""
        return TraceOptions(
            format=self.trace_format,
            start_s=self.start,
            duration_s=self.duration,
            rate_scale=self.rate_scale,
            seed=self.seed,
        )


@spread(LoadOptions)
def load(
    *,
    options: LoadOptions,
    trace: TraceArgument,
    url: Annotated[str, option("URL", "The server, such as http://127.0.0.1:8000.")],
    json: JsonFile = None,
    report: ReportFile = None,
    records: Annotated[str | None, option("FILE", "Write one JSON line per request.")] = None,
) -> None:
    """Replay a trace against an OpenAI endpoint: latencies and SLO attainment, as clients see them."""
    check_outputs({"--json": json, "--report": report, "--records": records}, (trace, options.config))
    with open_trace(trace, options.trace_options()) as opened:
        say_notes(opened)
        job = LoadJob(trace=opened, source=trace, url=url, options=options, records=records)
        document, interrupted = run_load(job)
    print_load(document, deliver(json, report, lambda: document, lambda: _page(document)))
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if failure := nothing_served(document):
        print(f"headway: {failure}", file=sys.stderr)
        raise typer.Exit(ALL_FAILED)


def _page(document: Mapping[str, Any]) -> str:
    # Here: a replay does without it.
    from headway_cli.page.load import render_load

    return render_load(document)


def nothing_served(document: Mapping[str, Any]) -> str:
    """One line if requests were sent and not one of them was served, else empty."""
    if document["completed"] or not document["requests"]:
        return ""
    ended = ", ".join(f"{count:,} {name}" for name, count in document["outcomes"].items())
    return f"none of {plural(document['requests'], 'request')} to {document['url']} was served: {ended}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadJob:
    """A trace, the server, the flags, and where each request's line goes."""

    trace: Trace
    source: str
    url: str
    options: LoadOptions
    records: str | None = None


def run_load(job: LoadJob) -> tuple[dict[str, Any], bool]:
    """Replay; the document, and whether an interrupt cut it short."""
    import uvloop

    given = {"slo.ttft_ms": job.options.ttft_ms, "slo.itl_ms": job.options.itl_ms}
    given = {name: value for name, value in given.items() if value is not None}
    key = os.environ.get(job.options.api_key_env)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        model = job.options.model or runner.run(fetch_models(job.url, key))[0]
        stated = {} if job.options.config else runner.run(fetch_slo(job.url, model, key))
        config = load_config(
            job.options.config, {f"slo.{name}": value for name, value in stated.items()} | given
        )
        plan = _plan(job, config, model, key)
        began = datetime.now(UTC)
        tally, interrupted = runner.run(_replay(job, plan))
    document = _document(job, plan, config, tally, began)
    if not job.options.config and len(given) < 2:
        whose = "those of the server" if stated else "Headway's defaults, as the server states none"
        document["notes"] = [*document["notes"], f"The targets that were not given are {whose}."]
    return document, interrupted


def _plan(job: LoadJob, config: HeadwayConfig, model: str, key: str | None) -> LoadPlan:
    options = job.options
    try:
        form = PromptForm(options.prompt)
    except ValueError:
        raise LoadError(f"--prompt: {options.prompt!r} is neither tokens nor text") from None
    return LoadPlan(
        url=job.url,
        model=model,
        slo=Slo(ttft_s=config.slo.ttft_s, itl_s=config.slo.itl_s),
        api_key=key,
        time_scale=options.time_scale,
        prompt=form,
        ignore_eos=options.ignore_eos,
        max_in_flight=options.max_in_flight,
        timeout_s=options.timeout,
        seed=options.seed,
    )


async def _replay(job: LoadJob, plan: LoadPlan) -> tuple[LoadTally, bool]:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    span_s = job.trace.duration_s / plan.time_scale
    try:
        with _record_writer(job.records) as on_record, load_bar(job.trace.request_count, span_s) as watch:
            tally = await replay(
                job.trace, plan, ReplayCallbacks(on_record=on_record, on_progress=watch), stop
            )
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
    return tally, stop.is_set()


@contextmanager
def _record_writer(place: str | None) -> Iterator[Callable[[RequestRecord], None] | None]:
    if place is None:
        yield None
        return
    try:
        with Path(place).open("w", encoding="utf-8") as file:
            yield lambda record: print(
                json.dumps({name: getattr(record, name) for name in RECORDED}), file=file
            )
    except OSError as error:
        raise CliError(f"{place} cannot be written: {error.strerror or error}") from error


def _document(
    job: LoadJob, plan: LoadPlan, config: HeadwayConfig, tally: LoadTally, began: datetime
) -> dict[str, Any]:
    trace = asdict(trace_figures(job.trace, job.source, job.options.trace_options()))
    named = {"name": trace.pop("name"), "rate_scale": trace.pop("rate_scale")}
    return {
        "url": plan.url,
        "model": plan.model,
        "started_at": began.isoformat(timespec="milliseconds"),
        "trace": {**named, "time_scale": plan.time_scale, **trace},
        "prompt": plan.prompt,
        "slo": {"ttft_s": plan.slo.ttft_s, "itl_s": plan.slo.itl_s, "attainment": config.slo.attainment},
        **tally.summary(),
    }


@contextmanager
def load_bar(requests: int, span_s: float) -> Iterator[Watch | None]:
    """A bar over the trace's time, with the figures so far; None when standard error is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (BarColumn(bar_width=24), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=error_console(), transient=True) as progress:
        task = progress.add_task("waiting for the first answer", total=span_s)

        def watch(state: ReplayProgress) -> None:
            text = f"{state.sent:,} of {requests:,} sent, {figures(state)}"
            progress.update(task, completed=min(state.elapsed_s, span_s), description=text)

        yield watch


def figures(state: ReplayProgress) -> str:
    """`3.2/s, 14 in flight, 98.7 % within SLO, 2 failed`."""
    tally = state.tally
    parts = [
        f"{state.sent / state.elapsed_s:.3g}/s" if state.elapsed_s else "0/s",
        f"{state.in_flight} in flight",
        f"{percent(tally.attainment)} within SLO",
    ]
    parts += [f"{count} {name}" for name, count in (("failed", tally.failed), ("shed", tally.shed)) if count]
    return ", ".join(parts)
