"""One replay as the command runs it: flags and an open trace in, a document (JSON-able data) out."""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from io import TextIOBase
from pathlib import Path
from typing import Any

from headway.config import HeadwayConfig, load_config
from headway.loadgen import (
    LoadError,
    LoadPlan,
    PromptForm,
    RequestRecord,
    Tally,
    Watchers,
    fetch_models,
    replay,
)
from headway.planning import Slo
from headway.workload import Trace
from headway_cli.document import source_name
from headway_cli.errors import CliError
from headway_cli.load_options import LoadOptions
from headway_cli.load_progress import load_bar


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

    config = load_config(
        job.options.config, {"slo.ttft_ms": job.options.ttft_ms, "slo.itl_ms": job.options.itl_ms}
    )
    key = os.environ.get(job.options.api_key_env)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        model = job.options.model or runner.run(fetch_models(job.url, key))[0]
        plan = _plan(job, config, model, key)
        began = datetime.now(UTC)
        tally, interrupted = runner.run(_replay(job, plan))
    return _document(job, plan, config, tally, began), interrupted


def _plan(job: LoadJob, config: HeadwayConfig, model: str, key: str | None) -> LoadPlan:
    options = job.options
    return LoadPlan(
        url=job.url,
        model=model,
        slo=Slo(ttft_s=config.slo.ttft_s, itl_s=config.slo.itl_s),
        api_key=key,
        time_scale=options.time_scale,
        prompt=_form(options.prompt),
        ignore_eos=options.ignore_eos,
        max_in_flight=options.max_in_flight,
        timeout_s=options.timeout,
        seed=options.seed,
    )


def _form(name: str) -> PromptForm:
    try:
        return PromptForm(name)
    except ValueError:
        raise LoadError(f"--prompt: {name!r} is neither tokens nor text") from None


async def _replay(job: LoadJob, plan: LoadPlan) -> tuple[Tally, bool]:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    span_s = job.trace.duration_s / plan.time_scale
    try:
        with _record_writer(job.records) as on_record, load_bar(job.trace.request_count, span_s) as tell:
            tally = await replay(job.trace, plan, Watchers(on_record=on_record, on_progress=tell), stop)
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
            yield lambda record: _write_record(file, record)
    except OSError as error:
        raise CliError(f"{place} cannot be written: {error.strerror or error}") from error


def _write_record(file: TextIOBase, record: RequestRecord) -> None:
    row = {
        "index": record.index,
        "intended_s": record.intended_s,
        "lag_s": record.lag_s,
        "ttft_s": record.ttft_s,
        "tpot_s": record.tpot_s,
        "e2e_s": record.e2e_s,
        "input_tokens": record.input_tokens,
        "requested_tokens": record.requested_tokens,
        "output_tokens": record.output_tokens,
        "outcome": record.outcome,
        "status": record.status,
        "detail": record.detail,
    }
    file.write(json.dumps(row) + "\n")


def _document(
    job: LoadJob, plan: LoadPlan, config: HeadwayConfig, tally: Tally, began: datetime
) -> dict[str, Any]:
    stats = job.trace.stats
    return {
        "url": plan.url,
        "model": plan.model,
        "started_at": began.isoformat(timespec="milliseconds"),
        "trace": {
            "name": source_name(job.source),
            "rate_scale": job.options.rate_scale,
            "time_scale": plan.time_scale,
            "start_s": job.options.start,
            "duration_s": job.trace.duration_s,
            "requests": job.trace.request_count,
            "isl_mean_tokens": stats.isl_mean,
            "osl_mean_tokens": stats.osl_mean,
            "reordered_rows": stats.reordered,
            "skipped_rows": stats.skipped_zero_input + stats.skipped_zero_output,
        },
        "prompt": plan.prompt,
        "slo": {"ttft_s": plan.slo.ttft_s, "itl_s": plan.slo.itl_s, "attainment": config.slo.attainment},
        **tally.summary(),
    }
