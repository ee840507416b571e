"""The prefill surface: TTFT and throughput per GPU of one prompt at a time, over input length.

Between samples both are piecewise linear: exact at the samples, never beyond them, monotone wherever they
are. Below the first sample TTFT is held (launch cost does not shrink with the prompt); above the last it
continues with the growth of the model fitted in `interp.fit`, ttft_last + model(isl) - model(last). Outside
the samples throughput is isl / ttft(isl), times what the sample at that edge measured relative to it. Answers
outside the samples are marked by `extrapolated`.
"""

from dataclasses import dataclass
from typing import Any, Self, overload

import numpy as np

from interp.arrays import BoolArray, FloatArray, Numbers, RealOrArray, query
from interp.fit import fit_prefill
from interp.samples import PrefillSamples


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefillTable:
    """TTFT as arrays, for compiled code: N nodes, linear between them, held below the first.

    Above the last node L: ttft_s[-1] + (isl - L) * (linear_s_per_token + quadratic_s_per_token2 * (isl + L)).
    `shortest_iteration_s` is the shortest ITL: what an iteration with hardly any work was seen to take.
    """

    isl_tokens: FloatArray
    ttft_s: FloatArray
    shortest_iteration_s: float
    linear_s_per_token: float
    quadratic_s_per_token2: float

    def work_nodes(self) -> tuple[FloatArray, FloatArray]:
        """Nodes (tokens, seconds) of the prefill work curve W: what prompt tokens add to shared iterations.

        The running maximum of TTFT, continued to 0 tokens with its slope up to the first sample of twice the
        tokens, but not below 0 nor above the shortest iteration; linear in between. W(0) is the cost of an
        iteration without work. Between samples closer to each other the slope would be one of noise, and what
        a prompt pays for once, such as waking an idle engine, is no part of an iteration.
        """
        tokens, seconds = np.asarray(self.isl_tokens, dtype=np.float64), np.maximum.accumulate(self.ttft_s)
        far = min(int(np.searchsorted(tokens, 2.0 * tokens[0])), len(tokens) - 1)
        slope = (seconds[far] - seconds[0]) / (tokens[far] - tokens[0])
        start = min(max(0.0, float(seconds[0] - slope * tokens[0])), self.shortest_iteration_s)
        return np.concatenate([[0.0], tokens]), np.concatenate([[start], seconds])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefillSurface:
    """TTFT and throughput over ISL. `samples` are in ascending order, without repeats.

    Arguments are numbers or arrays of positive tokens, answers are of the same shape; NaN gives NaN. Raises
    InterpError for zero, negative or infinite tokens.
    """

    samples: PrefillSamples
    table: PrefillTable
    gpus_per_engine: int

    @classmethod
    def through(cls, samples: PrefillSamples, gpus_per_engine: int, shortest_iteration_s: float) -> Self:
        """The surface through merged `samples`; for the last see `PrefillTable`."""
        model = fit_prefill(samples)
        table = PrefillTable(
            isl_tokens=samples.isl_tokens,
            ttft_s=samples.ttft_s,
            shortest_iteration_s=shortest_iteration_s,
            linear_s_per_token=model.linear_s_per_token,
            quadratic_s_per_token2=model.quadratic_s_per_token2,
        )
        return cls(samples=samples, table=table, gpus_per_engine=gpus_per_engine)

    @overload
    def ttft_s(self, isl_tokens: float) -> float: ...
    @overload
    def ttft_s(self, isl_tokens: Numbers) -> FloatArray: ...
    def ttft_s(self, isl_tokens: RealOrArray) -> float | FloatArray:
        """Seconds until the first token of a prompt of `isl_tokens`, without queueing."""
        asked = query(isl_tokens=isl_tokens)
        return _float_or_array(asked.answer(self._ttft(asked.flat[0])))

    @overload
    def throughput_per_gpu(self, isl_tokens: float) -> float: ...
    @overload
    def throughput_per_gpu(self, isl_tokens: Numbers) -> FloatArray: ...
    def throughput_per_gpu(self, isl_tokens: RealOrArray) -> float | FloatArray:
        """Input tokens per second per GPU when prompts of `isl_tokens` run one after the other."""
        asked = query(isl_tokens=isl_tokens)
        (isl,) = asked.flat
        known = self.samples
        between = np.interp(isl, known.isl_tokens, known.throughput_per_gpu)
        edge = np.clip(isl, known.isl_tokens[0], known.isl_tokens[-1])
        outside = between * (isl / edge) * (self._ttft(edge) / self._ttft(isl))
        return _float_or_array(asked.answer(np.where(isl == edge, between, outside)))

    @overload
    def extrapolated(self, isl_tokens: float) -> bool: ...
    @overload
    def extrapolated(self, isl_tokens: Numbers) -> BoolArray: ...
    def extrapolated(self, isl_tokens: RealOrArray) -> bool | BoolArray:
        """True where `isl_tokens` lies outside the samples; NaN does."""
        asked = query(isl_tokens=isl_tokens)
        (isl,) = asked.flat
        inside = (isl >= self.samples.isl_tokens[0]) & (isl <= self.samples.isl_tokens[-1])
        answer: bool | BoolArray = asked.answer(~inside)
        return answer

    def _ttft(self, isl: FloatArray) -> FloatArray:
        from interp.kernels import ttft_many

        table = self.table
        return ttft_many(
            isl, table.isl_tokens, table.ttft_s, table.linear_s_per_token, table.quadratic_s_per_token2
        )


def _float_or_array(value: Any) -> float | FloatArray:  # noqa: ANN401
    answer: float | FloatArray = value
    return answer
