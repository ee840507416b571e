"""`open_trace`: a file or generated load, cut and scaled as the options say."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from headway.workload.errors import TraceError
from headway.workload.generators import generate, looks_generated, parse_generator
from headway.workload.ingest import Ingested, ingest_file
from headway.workload.superpose import Cut, Scaling, Superposition
from headway.workload.trace import Trace, TraceOptions, TraceStats

MAX_SHIFT_S = 600.0
SHIFT_SHARE = 0.1
STATS_ROWS = 65536


def open_trace(source: str | Path, options: TraceOptions | None = None) -> Trace:
    """Open a trace file (plain, Azure, BurstGPT or Mooncake, gzip or not) or a generator specification.

    Cuts first (`start_s`, `duration_s`), then scales. A path that exists is a file whatever it is called. The
    trace owns temporary files, see `Trace`. Raises TraceError for whatever is wrong with source or options.
    """
    chosen = options or TraceOptions()
    ingested = _ingest(source, chosen)
    try:
        return _trace(str(source), ingested, chosen)
    except TraceError:
        ingested.spool.close()
        raise


def _ingest(source: str | Path, options: TraceOptions) -> Ingested:
    if isinstance(source, str) and looks_generated(source) and not Path(source).exists():
        if options.format is not None:
            raise TraceError(f"{source}: format {options.format}: generated load has no format")
        return generate(source, parse_generator(source, options.seed))
    return ingest_file(Path(source), options.format, options.reorder_window_s)


def _trace(name: str, ingested: Ingested, options: TraceOptions) -> Trace:
    cut = _cut(name, ingested, options)
    window_s = min(MAX_SHIFT_S, cut.span_s * SHIFT_SHARE)
    scaling = Scaling(
        rate_scale=options.rate_scale,
        window_s=window_s if options.shift_window_s is None else options.shift_window_s,
        seed=options.seed,
    )
    plan = Superposition(cut, scaling)
    if not plan.count():
        raise TraceError(f"{name}: rate_scale {options.rate_scale:g} leaves none of {cut.rows()} requests")
    return Trace(
        name=name,
        spool=ingested.spool,
        plan=plan,
        duration_s=cut.span_s,
        stats=_stats(ingested, cut),
    )


def _cut(name: str, ingested: Ingested, options: TraceOptions) -> Cut:
    """The rows from `start_s` to before `start_s + duration_s`; raises TraceError when there are none.

    A duration beyond the end is cut to it: time after the last arrival is no part of the workload.
    """
    spool, start_s = ingested.spool, options.start_s
    left_s = ingested.span_s - start_s
    if left_s < 0:
        raise TraceError(
            f"{name}: start_s {start_s:.15g} is beyond the end: the trace is {ingested.span_s:.15g} s long"
        )
    first, last, span_s = spool.first_row(start_s, lambda arrival: arrival), len(spool), left_s
    if options.duration_s is not None and options.duration_s <= left_s:
        span_s = options.duration_s
        last = spool.first_row(span_s, lambda arrival: arrival - start_s)
    if first >= last:
        part = f"from start_s {start_s:.15g} for {span_s:.15g} s"
        raise TraceError(f"{name}: no requests {part}: the trace is {ingested.span_s:.15g} s long")
    return Cut(spool=spool, start_s=start_s, span_s=span_s, first_row=first, last_row=last)


def _stats(ingested: Ingested, cut: Cut) -> TraceStats:
    inputs, outputs = _Lengths(), _Lengths()
    blocks = 0
    for at in range(cut.first_row, cut.last_row, STATS_ROWS):
        records = cut.spool.read(at, min(at + STATS_ROWS, cut.last_row))
        inputs.add(records["input_tokens"])
        outputs.add(records["output_tokens"])
        blocks += int(records["block_count"].sum(dtype=np.int64))
    counts = ingested.counts
    return TraceStats(
        rows_read=counts.rows_read,
        reordered=counts.reordered,
        skipped_zero_output=counts.skipped_zero_output,
        skipped_zero_input=counts.skipped_zero_input,
        requests=cut.rows(),
        isl_mean=inputs.total / cut.rows(),
        isl_max=inputs.highest,
        osl_mean=outputs.total / cut.rows(),
        osl_max=outputs.highest,
        blocks=blocks,
    )


class _Lengths:
    """The sum and the highest of token counts."""

    def __init__(self) -> None:
        self.total = 0
        self.highest = 0

    def add(self, tokens: npt.NDArray[np.int64]) -> None:
        self.total += int(tokens.sum())
        self.highest = max(self.highest, int(tokens.max()))
