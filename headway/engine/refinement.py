"""A profile corrected by what its engines do in traffic: as a whole, and more so where traffic has been.

Replicas report what a prefill took at its ISL, and the ITL of a batch at its mean context
(`observed_latency`). Each report gives a ratio to the profile that was measured beforehand, at

    KV usage = min(1, batch · context / KV capacity of the profile)

    r = ln(measured / profile), held within ± ln MOST_RATIO, and within ± OUTLIER of what is known by then

Evidence is kept in cells, half an octave of tokens and for decode a tenth of the KV cache: a weight, which
halves every HALF_LIFE_S, and the mean r. At a place x of a phase

    g    = Σ w r / Σ w                                                the phase's factor
    c(x) = (PRIOR g + Σ K(x) w r) / (PRIOR + Σ K(x) w)                K falls with the distance to the cell
    ln correction(x) = c(x) · Σ w / (Σ w + DOUBT)

so a slower GPU moves the whole surface, an engine of another shape the parts where it was seen, and little
evidence moves little. Corrections belong to the profile as measured, so they never compound.

Engines change, too: a power cap, a driver. The latest reports (their weight halves every QUICK_S) are held
against what was known before them; where they differ by more than CHANGED and by SURE standard errors, all
cells move by the difference and count as one report each from then on.

A report that is not finite and positive is left out. At most MOST_CELLS are kept; the one fed longest ago
goes first. `version` rises with every change. Times are seconds of one clock.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from math import exp, log, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.engine.observed_latency import CELLS_PER_OCTAVE, LatencyReport, Phase
from headway.engine.observed_limits import EngineLimits
from interp import DecodeSamples, PrefillSamples, Profile, build_profile
from interp.arrays import FloatArray

MOST_RATIO = 100.0
OUTLIER = 0.5
HALF_LIFE_S, QUICK_S = 600.0, 20.0
CHANGED, SURE = 0.05, 3.0
PRIOR, DOUBT = 4.0, 1.0
FIRM = 8.0
"""Weight of a phase from which on its reports are held against what is known."""
LEAST_LATEST = 4.0
"""Weight of the latest reports from which on they may show a change."""
NEAR_OCTAVES, NEAR_KV = 1.0, 0.15
"""Distances at which evidence counts exp(-1/2) of what it does at its place."""
MOST_CELLS = 256
CELLS_OF_KV = 10
AS_PROFILED = 0.05
"""Relative difference of a phase's factor up to which its engines are said to be as profiled."""
MATERIAL = 0.005
"""Relative change of a surface that is worth a new profile."""
URGENT = 0.1
"""Relative change of a surface that is worth a decision before its time."""


def difference(phase: str, factor: float) -> str:
    """`prefill takes 42 % longer than profiled`; "" for a factor that is as profiled."""
    if abs(factor - 1.0) <= AS_PROFILED:
        return ""
    how = f"{100.0 * (factor - 1.0):.0f} % longer" if factor > 1.0 else f"{100.0 * (1.0 - factor):.0f} % less"
    return f"{phase} takes {how} than profiled"


def limits_text(limits: Mapping[str, float]) -> str:
    """`at most 128 requests in a batch and 454,016 tokens of KV cache`; "" where no limit is known."""
    words = {"batch": "requests in a batch", "kv_tokens": "tokens of KV cache"}
    known = " and ".join(f"{limits[name]:,.0f} {text}" for name, text in words.items() if name in limits)
    return f"at most {known}, as they show" if known else ""


class RefinementCell(NamedTuple):
    """A part of one phase's reports."""

    phase: Phase
    tokens: int
    kv: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """A weight at a time, and means by it: ln of the ratio, its square, ln of tokens, and KV usage."""

    weight: float = 0.0
    at_s: float = 0.0
    log_ratio: float = 0.0
    square: float = 0.0
    log_tokens: float = 0.0
    kv_usage: float = 0.0

    def aged(self, now_s: float, half_life_s: float) -> "Evidence":
        """The same at a later time, of less weight."""
        weight = self.weight * 0.5 ** (max(0.0, now_s - self.at_s) / half_life_s)
        means = (self.log_ratio, self.square, self.log_tokens, self.kv_usage)
        return Evidence(weight, max(now_s, self.at_s), *means)

    def with_seen(self, log_ratio: FloatArray, log_tokens: FloatArray, kv_usage: FloatArray) -> "Evidence":
        """With more reports, f8[N] each."""
        weight = self.weight + len(log_ratio)
        step, before = len(log_ratio) / weight, (self.log_ratio, self.square, self.log_tokens, self.kv_usage)
        means = np.array((log_ratio, log_ratio**2, log_tokens, kv_usage)).mean(axis=1).tolist()
        moved = (was + step * (mean - was) for was, mean in zip(before, means, strict=True))
        return Evidence(weight, self.at_s, *moved)

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        if self.weight <= 1.0:
            return float("inf")
        return sqrt(max(0.0, self.square - self.log_ratio**2) / (self.weight - 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Refinement:
    """Everything that traffic has shown; cells in the order in which they were last fed.

    `latest` has by phase what the reports of the last seconds differ by, `since_s` the first report, or when
    engines were last seen to change. `limits` are what engines that others run show of themselves.
    """

    version: int = 0
    cells: Mapping[RefinementCell, Evidence] = field(default_factory=dict)
    latest: Mapping[Phase, Evidence] = field(default_factory=dict)
    since_s: Mapping[Phase, float] = field(default_factory=dict)
    limits: EngineLimits = field(default_factory=EngineLimits)

    def summary(self) -> dict[str, Any]:
        """As plain data: version, cells, and by phase the factor and since when it has held."""
        return {
            "version": self.version,
            "cells": len(self.cells),
            "factors": {phase.value: self.factor(phase) for phase in Phase},
            "since": {phase.value: self.since_s[phase] for phase in Phase if phase in self.since_s},
            **({"limits": self.limits.known} if self.limits.known else {}),
        }

    def document(self) -> dict[str, Any]:
        """Everything as plain data, for `restored`."""
        return {
            "version": self.version,
            "cells": [(*cell, *astuple(evidence)) for cell, evidence in self.cells.items()],
            "latest": {phase.value: astuple(evidence) for phase, evidence in self.latest.items()},
            "since": {phase.value: at_s for phase, at_s in self.since_s.items()},
            "limits": self.limits.known,
        }

    @classmethod
    def restored(cls, document: Mapping[str, Any]) -> "Refinement":
        """What `document` gave. KeyError, TypeError or ValueError for anything else."""
        names = [item.name for item in fields(Evidence)]

        def evidence(values: Sequence[float]) -> Evidence:
            return Evidence(**dict(zip(names, map(float, values), strict=True)))

        return cls(
            version=int(document["version"]),
            cells={
                RefinementCell(Phase(phase), int(tokens), int(kv)): evidence(values)
                for phase, tokens, kv, *values in document["cells"]
            },
            latest={Phase(phase): evidence(values) for phase, values in document["latest"].items()},
            since_s={Phase(phase): float(at_s) for phase, at_s in document["since"].items()},
            limits=EngineLimits(**document.get("limits", {})),
        )

    def seen(self, doubt: float) -> dict[str, Any]:
        """By phase the least and most tokens and the most KV usage of its reports, and `within`.

        That is the share by which its factor may be wrong where the profile's is, by `doubt` standard
        deviations of ln: a normal prior, and reports that are as far off each.
        """
        found = {}
        for phase in Phase:
            known = _Known.of(self.cells, phase)
            if len(known.weight):
                found[phase.value] = {
                    "tokens": [float(2.0 ** known.octaves.min()), float(2.0 ** known.octaves.max())],
                    "kv_usage": float(known.kv_usage.max()),
                    "within": exp(doubt / sqrt(1.0 + float(known.weight.sum()))) - 1.0,
                }
        return found

    def factor(self, phase: Phase) -> float:
        """Measured over profiled latency of the phase as a whole; 1 without evidence."""
        known = _Known.of(self.cells, phase)
        return exp(known.mean * known.trust)


class _Known(NamedTuple):
    """The evidence of one phase as columns, f8[cells] each."""

    weight: FloatArray
    log_ratio: FloatArray
    octaves: FloatArray
    kv_usage: FloatArray

    @classmethod
    def of(cls, cells: Mapping[RefinementCell, Evidence], phase: Phase) -> "_Known":
        rows = [
            (each.weight, each.log_ratio, each.log_tokens / log(2.0), each.kv_usage)
            for cell, each in cells.items()
            if cell.phase is phase
        ]
        return cls(*np.array(rows).reshape(-1, 4).T)

    @property
    def mean(self) -> float:
        total = self.weight.sum()
        return float(self.weight @ self.log_ratio / total) if total > 0.0 else 0.0

    @property
    def trust(self) -> float:
        return float(self.weight.sum() / (self.weight.sum() + DOUBT))

    def near(self, tokens: FloatArray, kv_usage: FloatArray) -> FloatArray:
        """The weight of each cell at each of N places, f8[N, cells]."""
        weight: FloatArray = np.exp(-0.5 * self.distance2(tokens, kv_usage)) * self.weight
        return weight

    def distance2(self, tokens: FloatArray, kv_usage: FloatArray) -> FloatArray:
        """The squared distance of each cell from each of N places, f8[N, cells]."""
        far = (np.log2(tokens)[:, None] - self.octaves) / NEAR_OCTAVES
        apart = (kv_usage[:, None] - self.kv_usage) / NEAR_KV
        squares: FloatArray = far**2 + apart**2
        return squares

    def at(self, tokens: FloatArray, kv_usage: FloatArray) -> FloatArray:
        """c at each of N places."""
        weight = self.near(tokens, kv_usage)
        near: FloatArray = (PRIOR * self.mean + weight @ self.log_ratio) / (PRIOR + weight.sum(axis=1))
        return near


def _ratios(profile: Profile, phase: Phase, columns: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Tokens, KV usage and bounded ln of measured over profiled latency of reports, f8[N, 3] → f8[N] each."""
    tokens, latency_s, batch = columns.T
    if phase is Phase.DECODE:
        kv_usage = np.minimum(1.0, batch * tokens / float(profile.decode.table.max_kv_tokens))
        expected_s = profile.decode.itl_s(kv_usage, tokens)
    else:
        kv_usage, expected_s = np.zeros(len(tokens)), profile.prefill.ttft_s(tokens)
    bounded = np.minimum(np.maximum(np.log(latency_s / expected_s), -log(MOST_RATIO)), log(MOST_RATIO))
    return tokens, kv_usage, bounded


def learn(
    refinement: Refinement, profile: Profile, reports: Iterable[LatencyReport], now_s: float
) -> Refinement:
    """With more reports at `now_s`; `profile` is the base: as measured, with the engines' KV cache."""
    seen = list(reports)
    columns, usable = report_columns(seen)
    if not usable.any():
        return refinement
    learnt = replace(
        refinement,
        version=refinement.version + 1,
        cells={cell: evidence.aged(now_s, HALF_LIFE_S) for cell, evidence in refinement.cells.items()},
    )
    phases = np.array([report.phase is Phase.PREFILL for report in seen])
    for phase in Phase:
        chosen = usable & (phases == (phase is Phase.PREFILL))
        if chosen.any():
            learnt = _with_phase(learnt, profile, phase, columns[chosen], now_s)
    newest = list(learnt.cells)[-MOST_CELLS:]
    return replace(learnt, cells={cell: learnt.cells[cell] for cell in newest})


def report_columns(reports: Sequence[LatencyReport]) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Tokens, latency and batch of each report, f8[N, 3], and those that can be used, bool[N]."""
    columns = np.array([report[1:4] for report in reports], np.float64).reshape(-1, 3)
    usable: NDArray[np.bool_] = np.all(np.isfinite(columns) & (columns > 0.0), axis=1)
    return columns, usable


def unexplained(refinement: Refinement, profile: Profile, phase: Phase, columns: FloatArray) -> FloatArray:
    """ln(measured / corrected) of reports of one phase, f8[N]; `columns` f8[N, 3] as of `report_columns`."""
    tokens, kv_usage, ratio = _ratios(profile, phase, columns)
    known = _Known.of(refinement.cells, phase)
    less: FloatArray = ratio - known.trust * known.at(tokens, kv_usage)
    return less


def _with_phase(
    learnt: Refinement, profile: Profile, phase: Phase, columns: FloatArray, now_s: float
) -> Refinement:
    """With reports of one phase, f8[N, 3]: tokens, latency, batch."""
    tokens, kv_usage, ratio = _ratios(profile, phase, columns)
    known = _Known.of(learnt.cells, phase)
    cells, latest, since_s = dict(learnt.cells), dict(learnt.latest), dict(learnt.since_s)
    since_s.setdefault(phase, now_s)
    if known.weight.sum() >= FIRM:
        expected = known.at(tokens, kv_usage)
        ratio = np.clip(ratio, expected - OUTLIER, expected + OUTLIER)
        recent = latest.get(phase, Evidence()).aged(now_s, QUICK_S)
        recent = recent.with_seen(ratio - expected, np.log(tokens), kv_usage)
        if recent.weight >= LEAST_LATEST and abs(recent.log_ratio) > max(CHANGED, SURE * recent.error):
            for cell in [cell for cell in cells if cell.phase is phase]:
                moved_to = cells[cell].log_ratio + recent.log_ratio
                cells[cell] = replace(
                    cells[cell], log_ratio=moved_to, square=moved_to**2, weight=min(1.0, cells[cell].weight)
                )
            recent, since_s[phase] = Evidence(), now_s
        latest[phase] = recent
    for cell, here in _cells(phase, tokens, kv_usage):
        # Taken out and put in again: the order of the dict is the order in which cells were last fed.
        evidence = cells.pop(cell, Evidence(at_s=now_s))
        cells[cell] = evidence.with_seen(ratio[here], np.log(tokens[here]), kv_usage[here])
    return replace(learnt, cells=cells, latest=latest, since_s=since_s)


def _cells(
    phase: Phase, tokens: FloatArray, kv_usage: FloatArray
) -> Iterator[tuple[RefinementCell, NDArray[np.bool_]]]:
    """The cells of reports, half an octave of tokens and a tenth of the KV cache, with theirs, bool[N]."""
    octaves = np.floor(CELLS_PER_OCTAVE * np.log2(tokens))
    tenths = np.minimum(CELLS_OF_KV - 1, np.floor(CELLS_OF_KV * kv_usage))
    for octave, tenth in sorted(set(zip(octaves.tolist(), tenths.tolist(), strict=True))):
        yield RefinementCell(phase, int(octave), int(tenth)), (octaves == octave) & (tenths == tenth)


def moved(profile: Profile, before: Refinement, after: Refinement, by: float = MATERIAL) -> bool:
    """True if the surfaces of `profile` differ by more than `by`, a fraction, between the two, or limits."""
    if before.limits.known != after.limits.known:
        return True
    then, now = _logarithms(profile, before), _logarithms(profile, after)
    return any(float(np.abs(new - old).max()) > log(1.0 + by) for old, new in zip(then, now, strict=True))


def _logarithms(profile: Profile, refinement: Refinement) -> tuple[FloatArray, FloatArray]:
    """ln of the corrections at the samples of prefill and of decode."""
    prefill, decode = (known.trust * known.at(*places) for known, *places in _samples(profile, refinement))
    return prefill, decode


def _samples(profile: Profile, refinement: Refinement) -> Iterator[tuple[_Known, FloatArray, FloatArray]]:
    """By phase what is known, and tokens and KV usage of the profile's samples."""
    isl_tokens, decode = profile.prefill.samples.isl_tokens, profile.decode.samples
    yield _Known.of(refinement.cells, Phase.PREFILL), isl_tokens, np.zeros(len(isl_tokens))
    yield _Known.of(refinement.cells, Phase.DECODE), decode.context_tokens, decode.kv_usage


def with_limits(refinement: Refinement, limits: EngineLimits) -> Refinement:
    """With other limits. Another KV cache is another base, for which everything begins anew."""
    if limits.kv_tokens != refinement.limits.kv_tokens:
        return Refinement(version=refinement.version + 1, limits=limits)
    return replace(refinement, limits=limits)


def refined(profile: Profile, refinement: Refinement) -> Profile:
    """The base `profile` corrected; itself while nothing is known. Its `meta` says `refined`, and how."""
    if not refinement.cells and not refinement.limits.known:
        return profile
    largest = refinement.limits.batch or profile.decode.largest_batch
    prefill, decode = (np.exp(each) for each in _logarithms(profile, refinement))
    summary = refinement.summary()
    if "guessed" in profile.meta:
        summary["seen"] = refinement.seen(log(profile.meta["guessed"]["within"]))
    said = {"max_batch_size": max(1.0, largest), "refined": summary}
    known, samples = profile.prefill.samples, profile.decode.samples
    return build_profile(
        PrefillSamples(
            isl_tokens=known.isl_tokens,
            ttft_s=known.ttft_s * prefill,
            throughput_per_gpu=known.throughput_per_gpu / prefill,
        ),
        DecodeSamples(
            max_kv_tokens=samples.max_kv_tokens,
            kv_usage=samples.kv_usage,
            context_tokens=samples.context_tokens,
            itl_s=samples.itl_s * decode,
            throughput_per_gpu=samples.throughput_per_gpu / decode,
        ),
        {**profile.meta, **said},
    )


def gathered(profile: Profile, reports: Sequence[LatencyReport]) -> Refinement:
    """Reports of one short time as evidence: nothing ages, nothing changes, each cell has its median.

    For reports that were sought where little is known: there `learn` would take an unknown shape for a
    change of the engines. At least one report must be finite and positive, or nothing is known.
    """
    cells, version = dict[RefinementCell, Evidence](), 0
    for phase in Phase:
        columns, usable = report_columns([each for each in reports if each.phase is phase])
        columns = columns[usable]
        if not len(columns):
            continue
        tokens, kv_usage, ratio = _ratios(profile, phase, columns)
        for cell, here in _cells(phase, tokens, kv_usage):
            middle = np.full(int(here.sum()), np.median(ratio[here]))
            cells[cell] = Evidence().with_seen(middle, np.log(tokens[here]), kv_usage[here])
        version += len(columns)
    return Refinement(version=version, cells=cells)


def within_reach(profile: Profile, refinement: Refinement) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Of the samples of prefill and of decode, bool[N] and bool[M], those near a report.

    Near is a distance of 1 in units of NEAR_OCTAVES and NEAR_KV.
    """
    prefill, decode = (
        np.asarray((known.distance2(*places) <= 1.0).any(axis=1))
        for known, *places in _samples(profile, refinement)
    )
    return prefill, decode
