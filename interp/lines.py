"""Decode samples as context lines, each continued over the whole KV axis.

A line is the samples of one context, linear in KV usage between them. Before its first sample it is held;
past its last it continues with the slope of the fitted roofline (`interp.fit`), which in KV usage is
max_kv_tokens * (b + c / context). Throughput outside a line's samples is that of the engine's arithmetic,
n / ITL, times what the sample at that end measured relative to it; so it goes to 0 with KV usage.
"""

from dataclasses import dataclass

import numpy as np

from interp.arrays import FloatArray
from interp.fit import DecodeModel
from interp.samples import DecodeSamples


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Line:
    """The samples of one context, by ascending KV usage: f8[S] each."""

    context_tokens: float
    kv: FloatArray
    itl_s: FloatArray
    throughput_per_gpu: FloatArray

    def itl_along(self, axis: FloatArray, model: DecodeModel, max_kv_tokens: float) -> FloatArray:
        """ITL at each KV usage of `axis`, f8[M], continued by `model` past the last sample."""
        beyond = np.maximum(axis - self.kv[-1], 0.0)
        slope = max_kv_tokens * (model.per_kv_token_s + model.per_sequence_s / self.context_tokens)
        return np.asarray(np.interp(axis, self.kv, self.itl_s) + slope * beyond)

    def throughput_along(self, axis: FloatArray, itl_s: FloatArray, per_kv: float) -> FloatArray:
        """Throughput at each KV usage of `axis`, f8[M], given the ITL there.

        `per_kv` is batch size per GPU at KV usage 1, what the arithmetic says where an edge sample is empty
        (kv 0).
        """
        first, last = self._measured_per_kv(0, per_kv), self._measured_per_kv(-1, per_kv)
        before, after = axis < self.kv[0], axis > self.kv[-1]
        between = np.interp(axis, self.kv, self.throughput_per_gpu)
        outside = axis / itl_s * np.where(before, first, last)
        return np.where(before | after, outside, between)

    def _measured_per_kv(self, edge: int, otherwise: float) -> float:
        kv = self.kv[edge]
        return float(self.throughput_per_gpu[edge] * self.itl_s[edge] / kv) if kv > 0 else otherwise


def lines_of(samples: DecodeSamples) -> list[Line]:
    """The context lines of merged `samples`, by ascending context."""
    contexts, starts = np.unique(samples.context_tokens, return_index=True)
    columns = (samples.kv_usage, samples.itl_s, samples.throughput_per_gpu)
    parts = (np.split(values, starts[1:]) for values in columns)
    return [
        Line(context_tokens=float(context), kv=kv, itl_s=itl, throughput_per_gpu=throughput)
        for context, kv, itl, throughput in zip(contexts, *parts, strict=True)
    ]
