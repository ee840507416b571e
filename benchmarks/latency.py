"""Errors and costs of predicted request latencies, beside the prior alone and common regressors.

Data: `latency/*.jsonl.gz`, real requests in order of time. The methods are in `latency_methods.py`.

1. Split: trained on the first 70 % of the rows, judged on the last 30 %. Ten seeds, each a bootstrap of the
   training rows (drawn with replacement, in order of time) and the regressors' random state.
2. Prequential, as in use: each block of 200 rows is predicted, then trained on, after 400 rows. Three seeds:
   where the first block ends.
3. Few rows: trained on n rows in a row, judged on the 200 after them. Ten seeds: where they begin.

MAPE in %, pinball loss at 0.9 in % of the mean outcome, share of outcomes at or below the quantile in %: mean
± standard deviation over seeds. "contended" are rows with requests waiting, where at least 5 % of the judged
have any, else rows with more running than half of the trained (prequential: by block, beside the first rows).

The form of the basis and the defaults of `LatencySettings` were chosen with an eye on these two files, so the
figures flatter ours a little; the regressors have their library's defaults.
"""

import gzip
import json
import pathlib
import time
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

import interp
from benchmarks.latency_methods import (
    LEVEL,
    OURS,
    WITH_PRIOR,
    Array,
    Learn,
    Predict,
    methods,
    of_model,
    profile_priors,
)
from predictors.latency import (
    LatencyFeatures,
    LatencySamples,
    Priors,
    Target,
    TrainingWindow,
    cold_model,
    samples_from_json,
    train,
)

FILES = ("sharegpt-h200", "chatbot-synthetic-h200")
PROFILE = "dynamo_h200_llama31-8b-fp8_tp1"
SEEDS, PREQUENTIAL_SEEDS = 10, 3
TRAINED_SHARE = 0.7
BLOCK, WARM_ROWS = 200, 400
FEW = (50, 100, 200, 400)
LIMIT_MS = 2.0
REPLICAS = 1_000


def main(data: pathlib.Path | None) -> int:
    """Print the tables; 1 when a prediction for 1,000 replicas takes longer than 2 ms, else 0."""
    if data is None or not (data / "latency").is_dir():
        print("latency: skipped, needs --data DIR with latency/ and profiles/")
        return 0
    priors = profile_priors(interp.load_profile(data / "profiles" / PROFILE))
    code = 0
    for name in FILES:
        samples = _load(data / "latency" / f"{name}.jsonl.gz")
        print(f"\n{name}: {len(samples)} rows")
        _print_table("split 70/30", _split_scores(samples, priors))
        _print_table("prequential", _prequential_scores(samples, priors))
        _print_table("few rows", _few_scores(samples, priors))
        code = max(code, _print_cost(samples, priors))
    return code


def _load(path: pathlib.Path) -> LatencySamples:
    with gzip.open(path, "rt") as lines:
        return samples_from_json([json.loads(line) for line in lines])


# The three protocols: method and column → one score per seed.

Scores = dict[str, dict[str, list[float]]]


def _split_scores(samples: LatencySamples, priors: Priors) -> Scores:
    cut = int(TRAINED_SHARE * len(samples))
    judged, scores = samples.rows(slice(cut, None)), _empty(priors)
    contended = _contended(samples.rows(slice(cut)), judged)
    for seed in range(SEEDS):
        drawn = np.sort(np.random.default_rng(seed).integers(0, cut, cut))
        for name, learn in methods(priors).items():
            predict = learn(samples.rows(drawn), seed)
            for target in Target:
                pairs = _pairs(predict, judged, target)
                _note(scores[name], target.value, pairs)
                if target is Target.TTFT:
                    _note(scores[name], "ttft contended", pairs[:, contended])
    return scores


def _prequential_scores(samples: LatencySamples, priors: Priors) -> Scores:
    scores = _empty(priors)
    for seed in range(PREQUENTIAL_SEEDS):
        first = WARM_ROWS + BLOCK * seed // PREQUENTIAL_SEEDS
        for name, learn in methods(priors).items():
            steps = _online(priors, name) if name.startswith(OURS) else _refit(learn)
            found: dict[str, list[Array]] = {}
            for predict, block in steps(samples, first):
                for target in Target:
                    pairs = _pairs(predict, block, target)
                    found.setdefault(target.value, []).append(pairs)
                    if target is Target.TTFT:
                        contended = _contended(samples.rows(slice(first)), block)
                        found.setdefault("ttft contended", []).append(pairs[:, contended])
            for column, parts in found.items():
                _note(scores[name], column, np.concatenate(parts, axis=1))
    return scores


Steps = Callable[[LatencySamples, int], Iterator[tuple[Predict, LatencySamples]]]


def _online(priors: Priors, name: str) -> Steps:
    """One window, and each model given to the next training, as the trainer does it."""
    priors = priors if name == WITH_PRIOR else Priors()

    def steps(samples: LatencySamples, first: int) -> Iterator[tuple[Predict, LatencySamples]]:
        window, model = TrainingWindow(), cold_model(priors)
        for start, end in _blocks(len(samples), first):
            window.add(samples.rows(slice(start, end)))
            model = train(window, priors, model).model
            yield of_model(model), samples.rows(slice(end, end + BLOCK))

    return steps


def _refit(learn: Learn) -> Steps:
    """Fitted anew to all rows so far."""

    def steps(samples: LatencySamples, first: int) -> Iterator[tuple[Predict, LatencySamples]]:
        for _, end in _blocks(len(samples), first):
            yield learn(samples.rows(slice(end)), first), samples.rows(slice(end, end + BLOCK))

    return steps


def _blocks(rows: int, first: int) -> list[tuple[int, int]]:
    ends = range(first, rows, BLOCK)
    return list(zip([0, *ends[:-1]], ends, strict=True))


def _few_scores(samples: LatencySamples, priors: Priors) -> Scores:
    scores = _empty(priors)
    for rows in FEW:
        for seed in range(SEEDS):
            start = int(np.random.default_rng(seed).integers(0, len(samples) - rows - BLOCK))
            trained, judged = (
                samples.rows(slice(start + a, start + b)) for a, b in ((0, rows), (rows, rows + BLOCK))
            )
            for name, learn in methods(priors).items():
                predict = learn(trained, seed)
                for target in Target:
                    error = _mape(_pairs(predict, judged, target))
                    scores[name].setdefault(f"{target.value} MAPE, {rows} rows", []).append(error)
    return scores


# Scores and output.


def _empty(priors: Priors) -> Scores:
    return {name: {} for name in methods(priors)}


def _contended(trained: LatencySamples, judged: LatencySamples) -> npt.NDArray[np.bool_]:
    """Which of the judged rows with a TTFT were under contention."""
    rows = judged.rows(np.isfinite(judged.ttft_s)).features
    waiting = rows.waiting > 0.0
    if waiting.mean() >= 0.05:
        return np.asarray(waiting)
    return np.asarray(rows.running > np.median(trained.features.running))


def _pairs(predict: Predict, samples: LatencySamples, target: Target) -> Array:
    """Centre, quantile and outcome of the measured rows, shape (3, n)."""
    measured = samples.rows(np.isfinite(samples.outcome_s(target)))
    return np.stack([*predict(measured.features, target), measured.outcome_s(target)])


def _note(columns: dict[str, list[float]], name: str, pairs: Array) -> None:
    columns.setdefault(f"{name} MAPE", []).append(_mape(pairs))
    _, quantile, outcome = pairs
    missed = outcome - quantile
    pinball = np.maximum(LEVEL * missed, (LEVEL - 1.0) * missed).mean() / outcome.mean()
    columns.setdefault(f"{name} pinball", []).append(100.0 * float(pinball))
    columns.setdefault(f"{name} covered", []).append(100.0 * float((missed <= 0.0).mean()))


def _mape(pairs: Array) -> float:
    centre, _, outcome = pairs
    return 100.0 * float(np.abs(centre / outcome - 1.0).mean())


def _print_table(title: str, scores: Scores) -> None:
    columns = list(next(iter(scores.values())))
    print(f"\n{title}\n| {'method':24} | " + " | ".join(columns) + " |")
    print("|" + "---|" * (len(columns) + 1))
    for name, values in scores.items():
        cells = [f"{np.mean(values[column]):.2f} ± {np.std(values[column]):.2f}" for column in columns]
        print(f"| {name:24} | " + " | ".join(cells) + " |", flush=True)


def _print_cost(samples: LatencySamples, priors: Priors) -> int:
    """One call for 1,000 replicas, centre and quantile of both targets; 1 when the median is too long."""
    window = TrainingWindow()
    window.add(samples)
    begun = time.perf_counter()
    model = train(window, priors).model
    trained_s = time.perf_counter() - begun
    drawn = np.random.default_rng(0).integers(0, len(samples), REPLICAS)
    features = samples.rows(drawn).features
    calls = {
        "predict": lambda: model.predict(features),
        "of which the prior": lambda: _ask(priors, features),
    }
    taken = {name: _median_ms(call) for name, call in calls.items()}
    listed = ", ".join(f"{name} {ms:.3f} ms" for name, ms in taken.items())
    print(f"\n{REPLICAS} replicas: {listed} (limit {LIMIT_MS:g} ms); training {trained_s * 1e3:.0f} ms")
    return int(taken["predict"] > LIMIT_MS)


def _ask(priors: Priors, features: LatencyFeatures) -> None:
    for target in Target:
        prior = priors.of(target)
        assert prior is not None
        prior(features)


def _median_ms(call: Callable[[], object], rounds: int = 300) -> float:
    call()
    taken = []
    for _ in range(rounds):
        begun = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begun)
    return 1e3 * float(np.median(taken))
