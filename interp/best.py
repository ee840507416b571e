"""The answer to "how fast may a decode engine go under this ITL?"."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from interp.arrays import BoolArray, FloatArray

Value = TypeVar("Value", float, FloatArray)
Truth = TypeVar("Truth", bool, BoolArray)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BestPoint(Generic[Value, Truth]):
    """The point of highest throughput whose ITL meets a target; scalars or arrays, as the question was.

    `throughput_per_gpu` in output tokens per second per GPU, `itl_s` (at most the target) and `kv_usage` say
    which point. Where no point meets the target, `feasible` is False and the point is that of least ITL.
    `extrapolated`: the point lies outside the samples. A NaN question gives NaN, not feasible, extrapolated.
    """

    throughput_per_gpu: Value
    itl_s: Value
    kv_usage: Value
    feasible: Truth
    extrapolated: Truth
