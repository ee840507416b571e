"""Files that people have and that are no trace and no profile directory: what they are, and what reads them.

A file is taken for the first kind of the table whose marks all stand in its beginning. `headway.profiling`
reads what of them holds a profile; `recorded_requests` reads those that list requests with their times.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from headway.workload.text import Piece, TraceError

BEGINNING_BYTES = 64 * 1024
MEASURE = "headway profile --engine URL measures one"


class KnownFile(NamedTuple):
    """A kind of file: its name in a sentence, its marks, what to do for want of a trace and of a profile."""

    name: str
    marks: tuple[str, ...]
    trace: str = "headway profile import reads it"
    profile: str = MEASURE


AIBRIX = KnownFile("an AIBrix GPU profile", ('"tputs"', '"indexes"'))
VLLM = KnownFile(
    "a result of vllm bench serve",
    ('"request_throughput"', '"mean_ttft_ms"'),
    "it has totals only; with --save-detailed it lists its requests, and those are read",
    f"import a folder with results at several --random-input-len, or {MEASURE}",
)
GUIDELLM = KnownFile(
    "a report of GuideLLM",
    ('"benchmarks"', '"guidellm_version"'),
    "it lists no requests with request_start_time, prompt_tokens and output_tokens",
    f"import a folder with reports at several prompt lengths, or {MEASURE}",
)
AIPERF = KnownFile(
    "a result of AIPerf or GenAI-Perf",
    ('"request_throughput"', '"time_to_first_token"'),
    "it has totals only; the trace that was replayed is read",
)
AI_CONFIGURATOR = KnownFile(
    "a result of AI Configurator",
    ("tokens/s/gpu", "ttft", "tpot", "isl"),
    "it has estimates of one load, no requests",
    "it is of one prompt length; headway estimate makes a profile by the same library",
)
HALVES = "save prefill_raw_data.json and decode_raw_data.json in one folder, and import that"
CONFIG_MAP = KnownFile("a ConfigMap with a profile", ("ConfigMap", "_raw_data.json"), HALVES, HALVES)
RAW_DATA = KnownFile("one half of a profile", ("thpt_per_gpu",), HALVES, "import the folder with both halves")
MOCKER = KnownFile("a profile of Dynamo's mocker", ("decode_active_kv_tokens", "prefill_ttft_ms"))

KNOWN = (CONFIG_MAP, AIBRIX, MOCKER, RAW_DATA, VLLM, GUIDELLM, AIPERF, AI_CONFIGURATOR)


def known_file(path: Path) -> KnownFile | None:
    """What a file is taken for; None for one that is nothing of the table, or not readable."""
    try:
        with path.open("rb") as file:
            beginning = file.read(BEGINNING_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    return next((kind for kind in KNOWN if all(mark in beginning for mark in kind.marks)), None)


def recorded_requests(path: Path) -> tuple[str, Piece] | None:
    """What a result is, and the requests that it lists as a plain trace; None for no known result.

    Raises TraceError, which says what it is taken for, where it lists none.
    """
    kind = known_file(path)
    if kind is None:
        return None
    try:
        rows = sorted(_requests(kind, json.loads(path.read_bytes()))) if kind in (VLLM, GUIDELLM) else []
    except (ValueError, TypeError, RecursionError):
        rows = []
    if not rows:
        raise TraceError(f"{path}: taken for {kind.name}, not for a trace: {kind.trace}")
    lines = (f"{time_s!r},{inputs},{outputs}\n" for time_s, inputs, outputs in rows)
    text = "timestamp_s,input_tokens,output_tokens\n" + "".join(lines)
    return kind.name, Piece(data=text.encode(), first_line=1)


def _requests(kind: KnownFile, content: Mapping[str, Any]) -> Iterator[tuple[float, int, int]]:
    """Start in seconds, input and output tokens of the requests that were served."""
    if kind is VLLM:
        columns = (content.get(key) or () for key in ("start_times", "input_lens", "output_lens"))
        yield from ((float(start), isl, osl) for start, isl, osl in zip(*columns, strict=True) if osl)
        return
    for benchmark in content["benchmarks"]:
        for request in (benchmark.get("requests") or {}).get("successful") or ():
            row = [request.get(key) for key in ("request_start_time", "prompt_tokens", "output_tokens")]
            if None not in row:
                yield float(row[0]), row[1], row[2]
