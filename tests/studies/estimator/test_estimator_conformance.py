"""What every `LatencyEstimator` must do; a new one is one more line in ESTIMATORS."""

import importlib.util
import math
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from analytic_engine import AnalyticEngine

from headway_studies.estimator.aiconfigurator import AiConfigurator
from headway_studies.estimator.request import EngineSpec, LatencyEstimator

SPEC = EngineSpec(model="meta-llama/Meta-Llama-3.1-8B", system="h100_sxm", backend="vllm", tp=2)
MISSING = importlib.util.find_spec("aiconfigurator") is None and not os.environ.get("CI")
ESTIMATORS = (
    pytest.param(AnalyticEngine, id="analytic double"),
    pytest.param(
        AiConfigurator,
        id="aiconfigurator",
        marks=pytest.mark.skipif(
            MISSING, reason="the extra headway[estimate] (aiconfigurator) is not installed"
        ),
    ),
)


@pytest.fixture(scope="module", params=ESTIMATORS)
def estimator(request: pytest.FixtureRequest) -> LatencyEstimator:
    open_estimator: Callable[[EngineSpec], LatencyEstimator] = request.param
    return open_estimator(SPEC)


def test_facts_are_positive_and_stay(estimator: LatencyEstimator) -> None:
    facts = estimator.facts
    assert facts.max_context_tokens >= 1
    assert facts.max_kv_tokens >= 1
    assert facts.kv_bytes_per_token > 0
    estimator.prefill_ms(512)
    assert estimator.facts == facts


def test_latencies_are_positive_and_repeatable(estimator: LatencyEstimator) -> None:
    for isl in (1, 128, 4_000, 30_000):
        first = estimator.prefill_ms(isl)
        assert math.isfinite(first)
        assert first > 0
        assert estimator.prefill_ms(isl) == first
    for batch, context in ((1, 1), (1, 256), (256, 128), (7, 5_001)):
        first = estimator.decode_ms(batch, context)
        assert math.isfinite(first)
        assert first > 0
        assert estimator.decode_ms(batch, context) == first


def test_a_decode_step_is_quicker_than_a_prefill_of_its_context(estimator: LatencyEstimator) -> None:
    assert estimator.decode_ms(1, 8_192) < estimator.prefill_ms(8_192)


def test_provenance_is_lines_of_text(estimator: LatencyEstimator) -> None:
    source = estimator.provenance()
    texts = (source.tool, source.tool_version, source.database_mode, source.backend_version, *source.notes)
    assert all(text and "\n" not in text for text in texts)


def test_importing_the_package_loads_no_estimator() -> None:
    check = (
        "import sys, headway_studies.estimator.aiconfigurator; "
        "print([m for m in sys.modules if m.startswith('aic')])"
    )
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
