"""The surfaces of an engine: latency and throughput per GPU of prefill and decode, and the inverse of decode.

Prefill, over the input length of one prompt at a time. Between samples TTFT and throughput are piecewise
linear: exact at the samples, never beyond them, monotone wherever they are. Below the first sample TTFT is
held (launch cost does not shrink with the prompt); above the last it continues with the growth of the model
fitted in `interp.fit`, ttft_last + model(isl) - model(last). Outside the samples throughput is
isl / ttft(isl), times what the sample at that edge measured relative to it.

Decode, over KV usage and context length. The values come from one product table (`interp.decode_table`), and
KV usage is clamped to [0, 1]. The inverse searches the KV usages an engine can reach at a context: from the
first sampled one to `domain_end_kv`, which is where the largest batch that was ever sampled (or that the
engine allows, if that is smaller) fills it, and never short of what was sampled at that context.

Answers outside the samples, or the sampled domain, are marked by `extrapolated`.
"""

from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar, overload

import numpy as np

from interp.arrays import BoolArray, FloatArray, Numbers, RealOrArray, query
from interp.decode_table import DecodeBounds, DecodeTable, SampledDomain, build_table, lines_of
from interp.fit import fit_prefill
from interp.samples import DecodeSamples, PrefillSamples

Value = TypeVar("Value", float, FloatArray)
Truth = TypeVar("Truth", bool, BoolArray)


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BestPoint(Generic[Value, Truth]):
    """The point of highest throughput whose ITL meets a target; scalars or arrays, as the arguments were.

    `throughput_per_gpu` in output tokens per second per GPU, `itl_s` (at most the target) and `kv_usage` say
    which point. Where no point meets the target, `feasible` is False and the point is that of least ITL.
    `extrapolated`: the point lies outside the samples. A NaN argument gives NaN, not feasible, extrapolated.
    """

    throughput_per_gpu: Value
    itl_s: Value
    kv_usage: Value
    feasible: Truth
    extrapolated: Truth


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeSurface:
    """ITL and throughput over (KV usage, context). `samples` are in order, without repeats.

    Arguments are numbers or arrays, broadcast together, answers have their common shape; NaN gives NaN.
    Raises InterpError for zero, negative or infinite tokens. `largest_batch` bounds the search for the best
    point.
    """

    samples: DecodeSamples
    domain: SampledDomain
    table: DecodeTable
    bounds: DecodeBounds
    largest_batch: float
    gpus_per_engine: int

    @classmethod
    def through(cls, samples: DecodeSamples, gpus_per_engine: int, max_batch_size: float = np.inf) -> Self:
        """The surface through merged `samples`, of an engine that runs at most `max_batch_size` at once."""
        domain = SampledDomain.of(lines_of(samples))
        table = build_table(samples, domain, gpus_per_engine)
        return cls(
            samples=samples,
            domain=domain,
            table=table,
            bounds=DecodeBounds.of(table),
            largest_batch=min(float(samples.batch_size.max()), max_batch_size),
            gpus_per_engine=gpus_per_engine,
        )

    @overload
    def itl_s(self, kv_usage: float, context_tokens: float) -> float: ...
    @overload
    def itl_s(self, kv_usage: Numbers, context_tokens: RealOrArray) -> FloatArray: ...
    @overload
    def itl_s(self, kv_usage: float, context_tokens: Numbers) -> FloatArray: ...
    def itl_s(self, kv_usage: RealOrArray, context_tokens: RealOrArray) -> float | FloatArray:
        """Seconds between tokens of a batch of mean `context_tokens` that fills `kv_usage` of the cache."""
        return self._look_up(self.table.itl_s, kv_usage, context_tokens)

    @overload
    def throughput_per_gpu(self, kv_usage: float, context_tokens: float) -> float: ...
    @overload
    def throughput_per_gpu(self, kv_usage: Numbers, context_tokens: RealOrArray) -> FloatArray: ...
    @overload
    def throughput_per_gpu(self, kv_usage: float, context_tokens: Numbers) -> FloatArray: ...
    def throughput_per_gpu(self, kv_usage: RealOrArray, context_tokens: RealOrArray) -> float | FloatArray:
        """Output tokens per second per GPU of such a batch."""
        return self._look_up(self.table.throughput_per_gpu, kv_usage, context_tokens)

    @overload
    def extrapolated(self, kv_usage: float, context_tokens: float) -> bool: ...
    @overload
    def extrapolated(self, kv_usage: Numbers, context_tokens: RealOrArray) -> BoolArray: ...
    @overload
    def extrapolated(self, kv_usage: float, context_tokens: Numbers) -> BoolArray: ...
    def extrapolated(self, kv_usage: RealOrArray, context_tokens: RealOrArray) -> bool | BoolArray:
        """True where the point lies outside the sampled domain; NaN does."""
        asked = query(kv_usage=kv_usage, context_tokens=context_tokens)
        answer: bool | BoolArray = asked.answer(~self.domain.contains(*asked.flat))
        return answer

    @overload
    def domain_end_kv(self, context_tokens: float) -> float: ...
    @overload
    def domain_end_kv(self, context_tokens: Numbers) -> FloatArray: ...
    def domain_end_kv(self, context_tokens: RealOrArray) -> float | FloatArray:
        """The highest KV usage that an engine is taken to reach at this mean context."""
        asked = query(context_tokens=context_tokens)
        answer: float | FloatArray = asked.answer(self._end(asked.flat[0]))
        return answer

    @overload
    def best_throughput_per_gpu(self, itl_s: float, context_tokens: float) -> BestPoint[float, bool]: ...
    @overload
    def best_throughput_per_gpu(
        self, itl_s: Numbers, context_tokens: RealOrArray
    ) -> BestPoint[FloatArray, BoolArray]: ...
    @overload
    def best_throughput_per_gpu(
        self, itl_s: float, context_tokens: Numbers
    ) -> BestPoint[FloatArray, BoolArray]: ...
    def best_throughput_per_gpu(
        self, itl_s: RealOrArray, context_tokens: RealOrArray
    ) -> BestPoint[float, bool] | BestPoint[FloatArray, BoolArray]:
        """The highest throughput at `context_tokens` with an ITL of at most `itl_s` seconds.

        Over all KV usages up to `domain_end_kv`, also where ITL is not monotone; among equals the smallest KV
        usage. If none meets the target: the point of least ITL (among equals the higher throughput), not
        feasible.
        """
        from interp.kernels import best_many

        asked = query(itl_s=itl_s, context_tokens=context_tokens)
        target, context = asked.flat
        table, end = self.table, self._end(context)
        kv, itl, throughput, feasible = best_many(
            target,
            1.0 / context,
            (np.minimum(self.samples.kv_usage.min(), end), end),
            (table.kv, table.inv_context, table.itl_s, table.throughput_per_gpu),
            (self.bounds.least_itl_after_s, self.bounds.most_throughput_before),
        )
        return BestPoint(
            throughput_per_gpu=asked.answer(throughput),
            itl_s=asked.answer(itl),
            kv_usage=asked.answer(kv),
            feasible=asked.answer(feasible),
            extrapolated=asked.answer(~self.domain.contains(kv, context)),
        )

    def _look_up(
        self, values: FloatArray, kv_usage: RealOrArray, context_tokens: RealOrArray
    ) -> float | FloatArray:
        from interp.kernels import bilinear_many

        asked = query(kv_usage=kv_usage, context_tokens=context_tokens)
        kv, context = asked.flat
        found = bilinear_many(kv, 1.0 / context, self.table.kv, self.table.inv_context, values)
        answer: float | FloatArray = asked.answer(found)
        return answer

    def _end(self, context: FloatArray) -> FloatArray:
        filled = self.largest_batch * context / self.table.max_kv_tokens
        return np.minimum(np.maximum(filled, self.domain.far_edge(context)), 1.0)
