"""The event queue: a binary heap with the total order (time, priority, sequence).

The priority is the event's kind and stands in the upper bits of `order`, the sequence number in the lower, so
that two events never compare equal and a run does not depend on anything but its inputs.
"""

from typing import Any

from numpy.typing import NDArray

from interp.jit import compiled

SEQUENCE_BITS = 56


@compiled
def _before(time_s: float, order: int, other_time_s: float, other_order: int) -> bool:
    return time_s < other_time_s or (time_s == other_time_s and order < other_order)


@compiled
def push(  # noqa: PLR0917 - a value object would be made at every event
    clock: Any,  # noqa: ANN401 - a record
    events: NDArray[Any],
    time_s: float,
    kind: int,
    index: int,
    version: int,
) -> None:
    """Add an event; the caller has made sure that there is room."""
    order = (kind << SEQUENCE_BITS) | clock.sequence
    clock.sequence += 1
    place = clock.events
    clock.events += 1
    while place > 0:
        parent = (place - 1) >> 1
        if _before(events[parent].time_s, events[parent].order, time_s, order):
            break
        events[place] = events[parent]
        place = parent
    events[place].time_s = time_s
    events[place].order = order
    events[place].index = index
    events[place].version = version


@compiled
def drop_first(clock: Any, events: NDArray[Any]) -> None:  # noqa: ANN401
    """Remove the first event."""
    clock.events -= 1
    size = clock.events
    if size == 0:
        return
    time_s, order = events[size].time_s, events[size].order
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        right = child + 1
        if right < size and _before(
            events[right].time_s, events[right].order, events[child].time_s, events[child].order
        ):
            child = right
        if _before(time_s, order, events[child].time_s, events[child].order):
            break
        events[place] = events[child]
        place = child
    events[place] = events[size]


@compiled
def kind_of(order: int) -> int:
    """The kind of the event with this order."""
    return order >> SEQUENCE_BITS
