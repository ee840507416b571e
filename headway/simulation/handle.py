"""The world as compiled code sees it: one pointer to a struct of arrays.

Passing the named tuple itself would copy some three hundred words at every call; a numba struct reference is
passed as one, and compiled code that takes it can be cached on disk. The fields are those of `World`.
"""

from typing import Any, cast

from numba import types
from numba.experimental import structref

from headway.simulation.layout import World
from interp.jit import compiled


@structref.register
class WorldType(types.StructRef):  # type: ignore[misc] # numba has no types
    """numba's type of a world."""

    def preprocess_fields(self, fields: Any) -> Any:  # noqa: ANN401 - numba's interface
        """Field types without literal values."""
        return tuple((name, types.unliteral(kind)) for name, kind in fields)


class WorldReference(structref.StructRefProxy):  # type: ignore[misc] # numba has no types
    """A world held by compiled code."""


structref.define_proxy(WorldReference, WorldType, list(World._fields))


@compiled
def _make(world: World) -> Any:  # noqa: ANN401 - a numba object
    return WorldReference(*world)


def handle_of(world: World) -> World:
    """A reference to the same arrays, for compiled functions; make it anew when an array is replaced."""
    return cast(World, _make(world))
