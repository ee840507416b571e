"""Synthetic requests for the latency tests: a truth, noise around it, and what a profile would say of it."""

import numpy as np

from predictors.latency import LatencyFeatures, LatencySamples, Priors


def load(rows: int, rng: np.random.Generator) -> LatencyFeatures:
    """Replicas from idle to overloaded, and prompts of 1 to 4,000 tokens."""
    running = rng.integers(0, 64, rows)
    waiting = np.where(running > 40, rng.integers(0, 20, rows), 0)
    return LatencyFeatures.of(
        kv_usage=running / 64,
        input_tokens=rng.integers(1, 4_000, rows),
        waiting=waiting,
        running=running,
        prefix_score=rng.choice([0.0, 0.5], rows),
        prefill_tokens_in_flight=waiting * 2_000,
    )


def true_ttft_s(features: LatencyFeatures) -> np.ndarray:
    uncached = features.input_tokens * (1 - features.prefix_score)
    return 0.02 + uncached / 10_000 + features.prefill_tokens_in_flight / 8_000


def true_tpot_s(features: LatencyFeatures) -> np.ndarray:
    return 0.01 + 0.0004 * features.running


def prior_ttft_s(features: LatencyFeatures) -> np.ndarray:
    """Half of the truth, and nothing of the queue."""
    return (0.02 + features.input_tokens * (1 - features.prefix_score) / 10_000) / 2


def prior_tpot_s(features: LatencyFeatures) -> np.ndarray:
    return np.full(len(features), 0.02)


PRIORS = Priors(ttft=prior_ttft_s, tpot=prior_tpot_s)


def measured(
    rows: int, seed: int, *, noise: float = 0.05, slower: float = 1.0, growing: bool = False
) -> LatencySamples:
    """Outcomes are `slower` times the truth, with log-normal noise that may grow with the load."""
    rng = np.random.default_rng(seed)
    features = load(rows, rng)
    spread = noise * (1 + 5 * features.kv_usage) if growing else noise
    ttft, tpot = (
        slower * truth(features) * np.exp(spread * rng.standard_normal(rows))
        for truth in (true_ttft_s, true_tpot_s)
    )
    return LatencySamples(features=features, ttft_s=ttft, tpot_s=tpot)


def error(predicted: np.ndarray, outcome: np.ndarray) -> float:
    return float(np.abs(predicted / outcome - 1).mean())
