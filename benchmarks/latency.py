"""Errors and costs of predicted request latencies, beside the prior alone and common regressors.

Data: every `latency/*.jsonl.gz`, one machine and mode each, requests in the order in which they were
measured. The methods are in `latency_methods.py`. Nothing is carried from one file to another.

1. Split: trained on the first 70 % of the rows, judged on the last 30 %. Ten seeds, each a bootstrap of the
   training rows (drawn with replacement, in order of time) and the regressors' random state.
2. Random: the same shares, drawn at random. It asks less: neighbours in time are on both sides.
3. Prequential: each block of 200 rows is predicted, then trained on, after 400 rows. Three seeds: where the
   first block ends. "as in use" takes in each row as soon as it is measured and trains every 50; "in tens"
   takes in ten at once.
4. Few rows: trained on n rows in a row, judged on the 200 after them. Ten seeds: where they begin.

A row counts as known once it stands in the file. A router knows it a stay later than it needed to predict it,
so prequential figures are better than what a router sees. `--seeds 1` takes a tenth of the time.

MAPE in %, pinball loss at 0.9 in % of the mean outcome, share of outcomes at or below the quantile in %: mean
± standard deviation over seeds. "contended" are rows with requests waiting, where at least 5 % of the judged
have any, else rows with more running than half of the trained (prequential: of the first rows).

The form of the basis and the defaults of `LatencySettings` were chosen with an eye on sharegpt-h200 and
chatbot-synthetic-h200, so the figures there flatter ours a little; the regressors have their library's
defaults.
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
    WITHOUT_PRIOR,
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
    OnlineLatency,
    Priors,
    Target,
    TrainingWindow,
    samples_from_json,
    train,
)

PROFILE = "dynamo_h200_llama31-8b-fp8_tp1"
SEEDS, PREQUENTIAL_SEEDS = 10, 3
TRAINED_SHARE = 0.7
BLOCK, WARM_ROWS = 200, 400
ONLINE = {"": (BLOCK, BLOCK), ", in tens": (50, 10), ", as in use": (50, 1)}
"""Ways to keep our model up, prequentially: rows between two trainings, rows that are taken in together."""

FEW = (50, 100, 200, 400)
LIMIT_MS = 2.0
REPLICAS = 1_000


def main(data: pathlib.Path | None, seeds: int = SEEDS) -> int:
    """Print the tables, of at most so many seeds each.

    1 when a prediction for 1,000 replicas takes longer than 2 ms, else 0.
    """
    if data is None or not (data / "latency").is_dir():
        print("latency: skipped, needs --data DIR with latency/ and profiles/")
        return 0
    priors = profile_priors(interp.load_profile(data / "profiles" / PROFILE))
    code = 0
    for path in sorted((data / "latency").glob("*.jsonl.gz")):
        samples = _load(path)
        print(f"\n{path.name.removesuffix('.jsonl.gz')}: {len(samples)} rows")
        _print_table("split 70/30", _split_scores(samples, priors, seeds))
        _print_table("random 70/30", _random_scores(samples, priors, seeds))
        _print_table("prequential", _prequential_scores(samples, priors, seeds))
        _print_table("few rows", _few_scores(samples, priors, seeds))
        code = max(code, _print_cost(samples, priors))
    return code


def _load(path: pathlib.Path) -> LatencySamples:
    with gzip.open(path, "rt") as lines:
        return samples_from_json([json.loads(line) for line in lines])


# The four protocols: method and column → one score per seed.

Scores = dict[str, dict[str, list[float]]]


def _split_scores(samples: LatencySamples, priors: Priors, seeds: int) -> Scores:
    cut, scores = int(TRAINED_SHARE * len(samples)), _empty(priors)
    for seed in range(min(seeds, SEEDS)):
        drawn = np.sort(np.random.default_rng(seed).integers(0, cut, cut))
        _learn_and_note(scores, priors, samples.rows(drawn), samples.rows(slice(cut, None)), seed)
    return scores


def _random_scores(samples: LatencySamples, priors: Priors, seeds: int) -> Scores:
    cut, scores = int(TRAINED_SHARE * len(samples)), _empty(priors)
    for seed in range(min(seeds, SEEDS)):
        drawn = np.random.default_rng(seed).permutation(len(samples))
        _learn_and_note(scores, priors, samples.rows(drawn[:cut]), samples.rows(drawn[cut:]), seed)
    return scores


def _learn_and_note(
    scores: Scores, priors: Priors, trained: LatencySamples, judged: LatencySamples, seed: int
) -> None:
    contended = _contention(trained, judged)
    for name, learn in methods(priors).items():
        predict = learn(trained, seed)
        for target in Target:
            pairs = _pairs(predict, judged, target)
            _note(scores[name], target.value, pairs)
            if target is Target.TTFT:
                _note(scores[name], "ttft contended", pairs[:, contended(judged)])


def _prequential_scores(samples: LatencySamples, priors: Priors, seeds: int) -> Scores:
    online = {
        f"{name}{how}": _online(given, every, at_once)
        for name, given in ((WITH_PRIOR, priors), (WITHOUT_PRIOR, Priors()))
        for how, (every, at_once) in ONLINE.items()
    }
    others = {name: learn for name, learn in methods(priors).items() if not name.startswith(OURS)}
    ways: dict[str, Steps] = online | {name: _refit(learn) for name, learn in others.items()}
    scores: Scores = {name: {} for name in ways}
    for seed in range(min(seeds, PREQUENTIAL_SEEDS)):
        first = WARM_ROWS + BLOCK * seed // PREQUENTIAL_SEEDS
        contended = _contention(samples.rows(slice(first)), samples.rows(slice(first, None)))
        for name, steps in ways.items():
            found: dict[str, list[Array]] = {}
            for predict, block in steps(samples, first):
                for target in Target:
                    pairs = _pairs(predict, block, target)
                    found.setdefault(target.value, []).append(pairs)
                    if target is Target.TTFT:
                        found.setdefault("ttft contended", []).append(pairs[:, contended(block)])
            for column, parts in found.items():
                _note(scores[name], column, np.concatenate(parts, axis=1))
    return scores


Steps = Callable[[LatencySamples, int], Iterator[tuple[Predict, LatencySamples]]]


def _online(priors: Priors, every: int, at_once: int) -> Steps:
    """As the trainer does it: `at_once` rows taken in together, and a training after `every` rows."""

    def steps(samples: LatencySamples, first: int) -> Iterator[tuple[Predict, LatencySamples]]:
        online = OnlineLatency()
        online.learn(samples.rows(slice(first)))
        for start in range(first, len(samples), at_once):
            if (start - first) % every == 0:
                online.train(priors)
            model, asked = online.model(), samples.rows(slice(start, start + at_once))
            assert model is not None, "it has just been trained"
            yield of_model(model), asked
            online.learn(asked)

    return steps


def _refit(learn: Learn) -> Steps:
    """Fitted anew to all rows so far."""

    def steps(samples: LatencySamples, first: int) -> Iterator[tuple[Predict, LatencySamples]]:
        for end in range(first, len(samples), BLOCK):
            yield learn(samples.rows(slice(end)), first), samples.rows(slice(end, end + BLOCK))

    return steps


def _few_scores(samples: LatencySamples, priors: Priors, seeds: int) -> Scores:
    scores = _empty(priors)
    for rows in FEW:
        for seed in range(min(seeds, SEEDS)):
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


Contended = Callable[[LatencySamples], npt.NDArray[np.bool_]]


def _contention(trained: LatencySamples, judged: LatencySamples) -> Contended:
    """Which rows with a TTFT were under contention, among the judged or some of them."""
    column, bound = "waiting", 0.0
    if (judged.features.waiting[np.isfinite(judged.ttft_s)] > 0.0).mean() < 0.05:
        column, bound = "running", float(np.median(trained.features.running))
    return lambda some: getattr(some.features, column)[np.isfinite(some.ttft_s)] > bound


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
