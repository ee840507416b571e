"""Compiled code called with plain tuples: numba takes longer to look at a named one than at all its numbers.

A forecast for one candidate took 5 µs, 3 of them to find out what `Newcomer`, `Surfaces` and `Batching` are.
The entries here take them as plain tuples, and name them again where that costs nothing.
"""

from headway.routing.fleet import FloatArray, SlotArray
from headway.routing.forecast import Batching, Newcomer, alone, forecast
from headway.routing.surfaces import Surfaces
from interp.jit import compiled

PlainNewcomer = tuple[float, float, float, float]
PlainBatching = tuple[float, float]
PlainSurfaces = tuple[FloatArray, FloatArray, tuple[float, float], FloatArray, FloatArray, FloatArray, float]
"""The fields of the named ones, in order."""


@compiled
def plain_forecast(  # noqa: PLR0917 - as `forecast`, compiled
    role: int,
    table: FloatArray,
    slots: SlotArray,
    cached: FloatArray,
    newcomer: PlainNewcomer,
    kind: int,
    surfaces: PlainSurfaces,
    batching: PlainBatching,
    out: FloatArray,
) -> None:
    """`forecast.forecast`."""
    named, rules = _surfaces(surfaces), _batching(batching)
    forecast(role, table, slots, cached, _newcomer(newcomer), kind, named, rules, out)


@compiled
def plain_alone(
    role: int, uncached: float, newcomer: PlainNewcomer, surfaces: PlainSurfaces, batching: PlainBatching
) -> tuple[float, float]:
    """`forecast.alone`."""
    return alone(role, uncached, _newcomer(newcomer), _surfaces(surfaces), _batching(batching))


@compiled
def _newcomer(plain: PlainNewcomer) -> Newcomer:
    now_s, input_tokens, expected_output, stay_s = plain
    return Newcomer(now_s, input_tokens, expected_output, stay_s)


@compiled
def _surfaces(plain: PlainSurfaces) -> Surfaces:
    work_tokens, work_s, growth, kv, inv_context, itl_s, capacity_tokens = plain
    return Surfaces(work_tokens, work_s, growth, kv, inv_context, itl_s, capacity_tokens)


@compiled
def _batching(plain: PlainBatching) -> Batching:
    max_batch, chunk_tokens = plain
    return Batching(max_batch, chunk_tokens)


def plain_surfaces(surfaces: Surfaces) -> PlainSurfaces:
    """The same without names."""
    work_tokens, work_s, growth, kv, inv_context, itl_s, capacity_tokens = surfaces
    return work_tokens, work_s, growth, kv, inv_context, itl_s, capacity_tokens
