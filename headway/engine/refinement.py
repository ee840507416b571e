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
from dataclasses import dataclass, field, replace
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


class Evidence(NamedTuple):
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
        return Evidence(weight, max(now_s, self.at_s), *self[2:])

    def with_seen(self, reports: float, means: Sequence[float]) -> "Evidence":
        """With so many more reports, of these means."""
        weight = self.weight + reports
        step = reports / weight
        moved = [was + step * (mean - was) for was, mean in zip(self[2:], means, strict=True)]
        return Evidence(weight, self.at_s, *moved)

    def moved(self, by: float) -> "Evidence":
        """Moved by so much of ln, and worth a report at most."""
        to = self.log_ratio + by
        return self._replace(log_ratio=to, square=to**2, weight=min(1.0, self.weight))

    @property
    def shows_change(self) -> bool:
        """True if the mean is clearly not 0, by its standard error."""
        if self.weight < LEAST_LATEST:
            return False
        error = sqrt(max(0.0, self.square - self.log_ratio**2) / (self.weight - 1.0))
        return abs(self.log_ratio) > max(CHANGED, SURE * error)


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
            "cells": [(*cell, *evidence) for cell, evidence in self.cells.items()],
            "latest": {phase.value: evidence for phase, evidence in self.latest.items()},
            "since": {phase.value: at_s for phase, at_s in self.since_s.items()},
            "limits": self.limits.known,
        }

    @classmethod
    def restored(cls, document: Mapping[str, Any]) -> "Refinement":
        """What `document` gave. KeyError, TypeError or ValueError for anything else."""

        def evidence(values: Sequence[float]) -> Evidence:
            return Evidence._make(map(float, values))

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
        rows = [evidence for cell, evidence in cells.items() if cell.phase is phase]
        weight, _, log_ratio, _, log_tokens, kv_usage = np.array(rows).reshape(-1, len(Evidence._fields)).T
        return cls(weight, log_ratio, log_tokens / log(2.0), kv_usage)

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


class Measured(NamedTuple):
    """N reports of one phase beside the profile: tokens, KV usage, and ln(measured / profile), bounded."""

    replicas: tuple[str, ...]
    tokens: FloatArray
    kv_usage: FloatArray
    log_ratio: FloatArray

    def where(self, chosen: Sequence[int]) -> "Measured":
        """Those at these places."""
        return Measured(tuple(self.replicas[at] for at in chosen), *(column[chosen] for column in self[1:]))

    @property
    def figures(self) -> FloatArray:
        """What `Evidence` keeps the means of, f8[4, N]."""
        return np.array((self.log_ratio, self.log_ratio**2, np.log(self.tokens), self.kv_usage))

    def cells(self) -> tuple[Sequence[tuple[int, int]], Sequence[int]]:
        """Half octaves of tokens and tenths of the KV cache, in order, and the place among them of each."""
        octaves = np.floor(CELLS_PER_OCTAVE * np.log2(self.tokens)).astype(np.int64)
        tenths = np.minimum(CELLS_OF_KV - 1, np.floor(CELLS_OF_KV * self.kv_usage)).astype(np.int64)
        each = list(zip(octaves.tolist(), tenths.tolist(), strict=True))
        place = {cell: at for at, cell in enumerate(sorted(set(each)))}
        return list(place), [place[cell] for cell in each]

    def by_cell(self, phase: Phase) -> Iterator[tuple[RefinementCell, int, Sequence[float]]]:
        """Each cell, how many of the reports are in it, and the means of theirs."""
        cells, place = self.cells()
        counts = np.bincount(place)
        means = np.array([np.bincount(place, figure) for figure in self.figures]) / counts
        for cell, count, mean in zip(cells, counts.tolist(), means.T.tolist(), strict=True):
            yield RefinementCell(phase, *cell), count, mean


Seen = Mapping[Phase, Measured]


def measured(profile: Profile, reports: Iterable[LatencyReport]) -> Seen:
    """Reports that can be used, by phase; `profile` is the base: as measured, with the engines' KV cache."""
    listed = list(reports)
    columns = np.array([report[1:4] for report in listed], np.float64).reshape(-1, 3)
    usable = np.all(np.isfinite(columns) & (columns > 0.0), axis=1).tolist()
    found = {}
    for phase in Phase:
        chosen = [at for at, report in enumerate(listed) if report.phase is phase and usable[at]]
        if chosen:
            replicas = tuple(listed[at].replica for at in chosen)
            found[phase] = Measured(replicas, *_ratios(profile, phase, columns[chosen]))
    return found


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


def learn(refinement: Refinement, seen: Seen, now_s: float) -> Refinement:
    """With more reports at `now_s`."""
    if not seen:
        return refinement
    cells = {cell: evidence.aged(now_s, HALF_LIFE_S) for cell, evidence in refinement.cells.items()}
    latest, since_s = dict(refinement.latest), dict(refinement.since_s)
    for phase, reports in seen.items():
        since_s.setdefault(phase, now_s)
        known, held = _Known.of(cells, phase), reports
        if known.weight.sum() >= FIRM:
            expected = known.at(reports.tokens, reports.kv_usage)
            ratio = np.clip(reports.log_ratio, expected - OUTLIER, expected + OUTLIER)
            held, above = reports._replace(log_ratio=ratio), reports._replace(log_ratio=ratio - expected)
            recent = latest.get(phase, Evidence()).aged(now_s, QUICK_S)
            recent = recent.with_seen(len(ratio), above.figures.mean(axis=1).tolist())
            if recent.shows_change:
                own = ((cell, evidence) for cell, evidence in cells.items() if cell.phase is phase)
                cells |= {cell: evidence.moved(recent.log_ratio) for cell, evidence in own}
                recent, since_s[phase] = Evidence(), now_s
            latest[phase] = recent
        for cell, count, means in held.by_cell(phase):
            # Taken out and put in again: the order of the dict is the order in which cells were last fed.
            cells[cell] = cells.pop(cell, Evidence(at_s=now_s)).with_seen(count, means)
    return Refinement(
        version=refinement.version + 1,
        cells=dict(list(cells.items())[-MOST_CELLS:]),
        latest=latest,
        since_s=since_s,
        limits=refinement.limits,
    )


def unexplained(refinement: Refinement, phase: Phase, reports: Measured) -> FloatArray:
    """ln(measured / corrected) of reports of one phase, f8[N]."""
    known = _Known.of(refinement.cells, phase)
    less: FloatArray = reports.log_ratio - known.trust * known.at(reports.tokens, reports.kv_usage)
    return less


class Corrections(NamedTuple):
    """ln of the corrections at a profile's samples, prefill f8[N] and decode f8[M], and known limits."""

    prefill: FloatArray
    decode: FloatArray
    limits: Mapping[str, float]


def corrections(profile: Profile, refinement: Refinement) -> Corrections:
    """What `refinement` makes of the base `profile`."""
    prefill, decode = (known.trust * known.at(*places) for known, *places in _samples(profile, refinement))
    return Corrections(prefill, decode, refinement.limits.known)


def moved(before: Corrections, after: Corrections, by: float = MATERIAL) -> bool:
    """True if the surfaces of a profile differ by more than `by`, a fraction, between the two, or limits."""
    return before.limits != after.limits or any(
        float(np.abs(new - old).max()) > log(1.0 + by) for old, new in zip(before[:2], after[:2], strict=True)
    )


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
    prefill, decode = (np.exp(each) for each in corrections(profile, refinement)[:2])
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
    cells, seen = dict[RefinementCell, Evidence](), measured(profile, reports)
    for phase, each in seen.items():
        places = np.array(each.cells()[1])
        middle = np.array([np.median(each.log_ratio[places == place]) for place in range(places.max() + 1)])
        of_cells = each._replace(log_ratio=middle[places]).by_cell(phase)
        cells |= {cell: Evidence().with_seen(count, means) for cell, count, means in of_cells}
    version = sum(len(each.replicas) for each in seen.values())
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
