"""The decode surfaces as product tables: ITL and throughput over KV usage and 1 / context.

Nodes in KV usage are 0, every sampled value, and 1; nodes in 1 / context are 0 (an endless context), every
context line, and 1 (one token). Between nodes a value is linear in both. Linear in 1 / context because at a
fixed number of tokens K in the cache the roofline  a + b * K + c * n  has n = K / context, so it is exactly
linear in it.

- Each line is continued over the axis (`interp.lines`) and bounded where the sampled domain needs it.
- Above the longest context ITL is held, on the safe side; throughput falls as 1 / context, as the batch does.
- Below the shortest context ITL grows by the roofline's batch term, c * K * (1 - 1 / context_min) at one
  token, and throughput is what the arithmetic says, n / ITL, times what was measured relative to it at the
  shortest line.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from interp.arrays import FloatArray, ProfileError, ascending_union
from interp.fit import DecodeModel, fit_decode
from interp.lines import SampledDomain, bounded, lines_of
from interp.samples import DecodeSamples

MOST_NODES = 2_000_000
"""Table size that is refused: thousands of samples without two on one line, some 100 MB."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeTable:
    """ITL and throughput as arrays, for compiled code: bilinear between nodes, clamped at the edges.

    `kv` f8[M] and `inv_context` f8[L] (1 / tokens) ascend; `itl_s` in seconds and `throughput_per_gpu` in
    output tokens per second per GPU are f8[L, M].
    """

    kv: FloatArray
    inv_context: FloatArray
    itl_s: FloatArray
    throughput_per_gpu: FloatArray
    max_kv_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeBounds:
    """Bounds of what a row of a table can still offer, f8[L, M] each; they end the search for the best point.

    `least_itl_after_s`: the least ITL from a node on; `most_throughput_before`: the highest up to a node.
    """

    least_itl_after_s: FloatArray
    most_throughput_before: FloatArray

    @classmethod
    def of(cls, table: DecodeTable) -> Self:
        """The bounds of `table`."""
        backwards = np.minimum.accumulate(table.itl_s[:, ::-1], axis=1)
        return cls(
            least_itl_after_s=np.ascontiguousarray(backwards[:, ::-1]),
            most_throughput_before=np.maximum.accumulate(table.throughput_per_gpu, axis=1),
        )


def build_table(samples: DecodeSamples, domain: SampledDomain, gpus_per_engine: int) -> DecodeTable:
    """The product table of merged `samples`. Raises ProfileError for one of more than `MOST_NODES`."""
    axis = ascending_union([0.0], samples.kv_usage, [1.0])
    _refuse_vast(len(domain.context_tokens), len(axis))
    model = fit_decode(samples)
    itl, throughput = _continued_lines(samples, domain, axis, gpus_per_engine, model)
    contexts = domain.context_tokens
    if contexts[0] > 1:
        itl, throughput = _with_one_token_line(
            itl, throughput, axis * samples.max_kv_tokens, contexts[0], model
        )
        contexts = np.concatenate([[1.0], contexts])
    # In an endless context any KV usage holds no whole request: no throughput, the ITL of the longest line.
    endless = np.zeros((1, len(axis)))
    return DecodeTable(
        kv=axis,
        inv_context=np.concatenate([[0.0], 1.0 / contexts[::-1]]),
        itl_s=np.vstack([itl[-1:], itl[::-1]]),
        throughput_per_gpu=np.vstack([endless, throughput[::-1]]),
        max_kv_tokens=samples.max_kv_tokens,
    )


def _refuse_vast(contexts: int, usages: int) -> None:
    if contexts * usages > MOST_NODES:
        raise ProfileError(
            f"decode samples: {contexts} different contexts and {usages} different KV usages make a table of "
            f"more than {MOST_NODES} nodes; sweep a grid"
        )


def _continued_lines(
    samples: DecodeSamples, domain: SampledDomain, axis: FloatArray, gpus: int, model: DecodeModel
) -> tuple[FloatArray, FloatArray]:
    """ITL and throughput of each line over `axis`, by ascending context: f8[lines, M] each."""
    lines, capacity = lines_of(samples), samples.max_kv_tokens
    itl = np.vstack([line.itl_along(axis, model, capacity) for line in lines])
    itl = bounded(itl, axis, domain, (samples.itl_s.min(), samples.itl_s.max()))
    throughput = np.vstack(
        [
            line.throughput_along(axis, row, per_kv=capacity / line.context_tokens / gpus)
            for line, row in zip(lines, itl, strict=True)
        ]
    )
    span = (samples.throughput_per_gpu.min(), samples.throughput_per_gpu.max())
    return itl, bounded(throughput, axis, domain, span)


def _with_one_token_line(
    itl: FloatArray, throughput: FloatArray, kv_tokens: FloatArray, shortest: float, model: DecodeModel
) -> tuple[FloatArray, FloatArray]:
    """The lines with one for a context of one token before the `shortest`."""
    itl_there = itl[0] + model.per_sequence_s * kv_tokens * (1.0 - 1.0 / shortest)
    throughput_there = throughput[0] * shortest * itl[0] / itl_there
    return np.vstack([itl_there, itl]), np.vstack([throughput_there, throughput])
