"""Traces as people have them: each file is small, made here, and the truth of it is known."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trace_files import PLAIN_HEADER, whole, write

from headway.workload import TraceError, TraceOptions, open_trace

COUNT = 200
GENERATOR = np.random.default_rng(7)
EPOCH_S = 1_780_000_000


def arrivals(rate_rps: float, count: int = COUNT) -> list[float]:
    """Poisson arrivals in seconds, to a thousandth."""
    return [round(float(at), 3) for at in np.cumsum(GENERATOR.exponential(1 / rate_rps, count))]


def rows(path: Path, times: Sequence[object], isl: int = 1000, osl: int = 250, **more: Any) -> Path:
    """A trace under Mooncake's keys."""
    lines = [
        json.dumps({"timestamp": time, "input_length": isl, "output_length": osl, **more}) for time in times
    ]
    return write(path, *lines)


def scaled(times: Sequence[float], factor: float, whole_numbers: bool) -> list[float]:
    return [round(time * factor) if whole_numbers else time * factor for time in times]


TAKEN = {
    "Bailian, s": (arrivals(0.5), 1.0, False, {}),
    "Bailian, whole s": (arrivals(0.5), 1.0, True, {}),
    "GuideLLM, short requests, s": (arrivals(1.1), 1.0, False, {"isl": 20, "osl": 8}),
    "busy service, s": (arrivals(90.0, 6000), 1.0, False, {"osl": 200}),
    "three hours, s": (arrivals(0.2, 2000), 1.0, False, {}),
    "embeddings, s": (arrivals(40.0, 4000), 1.0, False, {"osl": 0}),
    "Mooncake, ms": (arrivals(3.4), 1e3, True, {"isl": 12_000, "osl": 343}),
    "ms with decimals": (arrivals(0.5), 1e3, False, {}),
    "a quiet service, ms": (arrivals(0.02), 1e3, True, {}),
    "a few rows, ms": (arrivals(2.0, 4), 1e3, True, {"osl": 5}),
    "since 1970, s": ([EPOCH_S + at for at in arrivals(0.01)], 1.0, False, {}),
    "since 1970, ms": ([EPOCH_S + at for at in arrivals(200.0)], 1e3, True, {}),
    "since 1970, us": ([EPOCH_S + at for at in arrivals(1.0)], 1e6, True, {}),
}
"""Arrivals in seconds, units per second, whole numbers, lengths."""


@pytest.mark.parametrize("kind", TAKEN)
def test_times_are_read_in_the_unit_that_is_plausible(tmp_path: Path, kind: str) -> None:
    times, per_s, whole_numbers, lengths = TAKEN[kind]
    with open_trace(rows(tmp_path / "t.jsonl", scaled(times, per_s, whole_numbers), **lengths)) as trace:
        assert trace.duration_s == pytest.approx(times[-1] - times[0], abs=1.0 if whole_numbers else 1e-3)
        notes = [note for note in trace.notes if "timestamp is read as" in note]
    unit = {1.0: "s", 1e3: "ms", 1e6: "us"}[per_s]
    assert len(notes) == (unit != "ms")
    assert all(f"timestamp is read as {unit}: " in note and "--format mooncake:ms" in note for note in notes)


def test_ms_that_are_ordinary_stay_and_are_said(tmp_path: Path) -> None:
    """An hour of a busy service in ms could be a sparse one of six weeks in s."""
    times = arrivals(16.0, 3000)
    with open_trace(rows(tmp_path / "t.jsonl", scaled(times, 1e3, True), isl=800, osl=2500)) as trace:
        assert trace.duration_s == pytest.approx(times[-1] - times[0], abs=1e-2)
        (note,) = trace.notes
        assert "timestamp is read as ms: " in note
        assert "--format mooncake:s" in note


ASKED = {
    "a request a second of 8 tokens, whole": (arrivals(1.1), 1.0, {"isl": 20, "osl": 8}),
    "a thousand a second for a minute, ms": (arrivals(1000.0, 60_000), 1e3, {"osl": 200}),
}


@pytest.mark.parametrize("kind", ASKED)
def test_two_plausible_units_are_asked_for(tmp_path: Path, kind: str) -> None:
    times, per_s, lengths = ASKED[kind]
    path = rows(tmp_path / "t.jsonl", scaled(times, per_s, True), **lengths)
    with pytest.raises(TraceError, match=r"line 1: timestamp: can be s \(.*or ms \(.*--format mooncake:ms"):
        open_trace(path)
    unit = {1.0: "s", 1e3: "ms"}[per_s]
    with open_trace(path, TraceOptions(format=f"mooncake:{unit}")) as trace:
        assert trace.duration_s == pytest.approx(times[-1] - times[0], abs=1.0)
        assert trace.notes == ()


def test_a_unit_that_the_name_says_stays_and_is_doubted(tmp_path: Path) -> None:
    lines = [f"{at * 1e3:.0f},12000,343" for at in arrivals(3.4)]
    path = write(tmp_path / "t.csv", PLAIN_HEADER, *lines)
    with open_trace(path) as trace:
        assert trace.duration_s > 10_000
        (note,) = trace.notes
        assert "timestamp_s is read as s" in note
        assert "--format plain:ms" in note
    with open_trace(path, TraceOptions(format="plain:ms")) as trace:
        assert trace.duration_s < 100


@pytest.mark.parametrize("name", ["mooncake:min", "mooncake:", "sharegpt:s", "azure:s"])
def test_a_unit_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:03.97,1,1")
    with pytest.raises(TraceError, match=r"unit|unknown"):
        open_trace(path, TraceOptions(format=name))


@pytest.mark.parametrize("size", [16, 64, 512, 1024])
@pytest.mark.parametrize("form", ["small", "hex", "u64", "negative"])
def test_blocks_of_any_form_and_size_share_what_prompts_share(tmp_path: Path, size: int, form: str) -> None:
    names = {
        "small": lambda block: block,
        "hex": lambda block: f"{block:016x}",
        "u64": lambda block: 2**63 + block,
        "negative": lambda block: -1 - block,
    }
    shared, lengths = 4096, [4096 + 7 * size, 4096 + 3 * size - 1, 4096 + 11 * size]
    lines = []
    for at, isl in enumerate(lengths):
        known = list(range(shared // size))
        own = [1000 * (at + 1) + block for block in range(-(-(isl - shared) // size))]
        ids = [names[form](block) for block in known + own]
        lines.append(
            json.dumps({"timestamp": 20_000 * at, "input_length": isl, "output_length": 9, "hash_ids": ids})
        )
    with open_trace(write(tmp_path / "t.jsonl", *lines)) as trace:
        chunk = whole(trace)
        prompts = [
            trace.blocks[start : start + count].tolist()
            for start, count in zip(chunk.block_start, chunk.block_count, strict=True)
        ]
        assert all(0 <= block < 2**40 for prompt in prompts for block in prompt)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        same = [mine == its for mine, its in zip(prompts[one], prompts[other], strict=False)]
        assert same[: shared // 512] == [True] * (shared // 512)
        assert not any(same[shared // 512 :])


def dynamo(received_ms: int, **replay: Any) -> str:
    request = {
        "request_id": str(received_ms),
        "output_tokens": 16,
        "request_received_ms": received_ms,
        "replay": {"trace_block_size": 64, "input_length": 1024, **replay},
    }
    return json.dumps({"schema": "dynamo.request.trace.v1", "event_type": "request_end", "request": request})


def test_a_request_trace_of_dynamo_is_read(tmp_path: Path) -> None:
    start = EPOCH_S * 1000
    tool = json.dumps({"schema": "dynamo.request.trace.v1", "event_type": "tool_end", "tool": {}})
    hashes = [2**64 - 1 - block for block in range(16)]
    lines = [
        dynamo(start + 90_000, input_sequence_hashes=hashes),
        tool,
        dynamo(start, input_sequence_hashes=[*hashes[:8], *range(8)]),
        dynamo(start + 100_000),
    ]
    with open_trace(write(tmp_path / "t.jsonl", *lines)) as trace:
        chunk = whole(trace)
        assert chunk.arrival_s.tolist() == [0.0, 90.0, 100.0]
        assert chunk.input_tokens.tolist() == [1024] * 3
        assert chunk.block_count.tolist() == [2, 2, 0]
        blocks = trace.blocks.reshape(2, 2)
        assert blocks[0, 0] == blocks[1, 0]
        assert blocks[0, 1] != blocks[1, 1]
        assert (trace.stats.reordered, trace.notes) == (1, ())


def test_turns_of_a_session_hold_the_conversation_and_follow_the_answer(tmp_path: Path) -> None:
    first = {"timestamp": 0, "input_length": 400, "output_length": 100, "hash_ids": [0]}
    turn = {"delay": 300_000, "input_length": 200, "output_length": 100}
    lines = [json.dumps({"session_id": name, **line}) for name in ("a", "b") for line in (first, turn, turn)]
    with open_trace(write(tmp_path / "t.jsonl", *lines)) as trace:
        chunk = whole(trace)
        assert sorted(chunk.input_tokens.tolist()) == [400, 400, 700, 700, 1000, 1000]
        # An answer of 100 tokens takes two seconds.
        assert chunk.arrival_s.tolist() == pytest.approx([0, 0, 302, 302, 604, 604], abs=0.1)
        assert "4 turns have a delay after an answer" in trace.notes[0]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            {"timestamp": 0, "input_length": 9},
            "output_length: missing; .*AIPerf.* how long a request decodes",
        ),
        ({"timestamp": 0, "output_length": 9}, "input_length: missing; .* how long its prompt is"),
        (
            {"session_id": "a", "delay": 5, "input_length": 9, "output_length": 9},
            "timestamp: missing; .* when it comes",
        ),
    ],
)
def test_what_a_line_lacks_is_said_with_its_use(tmp_path: Path, line: dict[str, Any], says: str) -> None:
    with pytest.raises(TraceError, match=f"line 1: {says}"):
        open_trace(write(tmp_path / "t.jsonl", json.dumps(line)))


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_prefill_alone_is_load(tmp_path: Path, form: str) -> None:
    outputs = [0, 40, 0, 1]
    if form == "csv":
        path = write(tmp_path / "t.csv", PLAIN_HEADER, *(f"{at},300,{osl}" for at, osl in enumerate(outputs)))
    else:
        lines = [
            json.dumps({"timestamp": 1000 * at, "input_length": 300, "output_length": osl})
            for at, osl in enumerate(outputs)
        ]
        path = write(tmp_path / "t.jsonl", *lines)
    with open_trace(path) as trace:
        assert whole(trace).output_tokens.tolist() == [1, 40, 1, 1]
        assert (trace.stats.prefill_only, trace.stats.skipped_zero_output) == (2, 0)
        assert trace.notes == (
            "2 of 4 rows have no output tokens: kept as requests that end with their prefill",
        )


REQUESTS = [(EPOCH_S + 3.5, 200, 30), (EPOCH_S + 0.5, 100, 20)]
GUIDELLM = {
    "metadata": {"guidellm_version": "0.8.1"},
    "benchmarks": [
        {
            "requests": {
                "successful": [
                    {"request_start_time": at, "prompt_tokens": isl, "output_tokens": osl}
                    for at, isl, osl in REQUESTS
                ]
            }
        }
    ],
}
VLLM = {"request_throughput": 1.0, "mean_ttft_ms": 40.0}
DETAILED = dict(zip(("start_times", "input_lens", "output_lens"), zip(*REQUESTS, strict=True), strict=True))


@pytest.mark.parametrize("content", [GUIDELLM, VLLM | DETAILED])
@pytest.mark.parametrize("indent", [None, 2])
def test_requests_that_a_result_lists_are_a_trace(tmp_path: Path, content: Any, indent: int | None) -> None:
    (tmp_path / "result.json").write_text(json.dumps(content, indent=indent))
    with open_trace(tmp_path / "result.json") as trace:
        chunk = whole(trace)
        assert (chunk.arrival_s.tolist(), chunk.input_tokens.tolist()) == ([0.0, 3.0], [100, 200])
        assert "the requests that it lists are the trace" in trace.notes[0]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (json.dumps(VLLM), "vllm bench serve"),
        (json.dumps({"metadata": {"guidellm_version": "0"}, "benchmarks": [{}]}), "GuideLLM"),
        ("index,isl,osl,ttft,tpot,tokens/s/gpu\n0,4000,500,480,19,512\n", "AI Configurator"),
        (json.dumps({"indexes": [], "tputs": []}), "AIBrix"),
        (json.dumps({"prefill_isl": [1], "prefill_thpt_per_gpu": [1]}), "half of a profile"),
        ("kind: ConfigMap\ndata: {decode_raw_data.json: '{}'}\n", "ConfigMap"),
    ],
)
def test_a_file_that_is_no_trace_is_named(tmp_path: Path, text: str, name: str) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(TraceError, match=f"file: taken for .*{name}.*, not for a trace: "):
        open_trace(tmp_path / "file")
