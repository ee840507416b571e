"""What the kernel writes down for Python: ended requests, transitions of replicas, gaps between tokens.

Where a router drives (`Routing.ROUTER`), it also notes what the router must be told: see `layout.NOTICE`.
"""

from headway.simulation.histogram import add
from headway.simulation.layout import (
    CANCELLED,
    COMPLETED,
    ENDED,
    FIRST_TOKEN,
    ITL,
    NONE,
    REPLICA_CHANGED,
    SHED,
    TTFT,
    Routing,
    World,
)
from interp.jit import compiled


@compiled
def notify(world: World, kind: int, index: int, number: int, value: int) -> None:
    """Tell the router, if one drives."""
    if world.settings[0].routing == Routing.ROUTER:
        clock = world.clock[0]
        notice = world.notices[clock.notices]
        notice.kind, notice.index, notice.number, notice.value = kind, index, number, value
        clock.notices += 1


@compiled
def log_transition(world: World, replica: int, state: int) -> None:
    """Tell Python that a replica changed its state."""
    clock, unit = world.clock[0], world.replicas[replica]
    entry = world.transitions[clock.transitions]
    entry.time_s, entry.created_s = clock.now_s, unit.created_s
    entry.role, entry.state = unit.role, state
    clock.transitions += 1
    if state != CANCELLED:
        notify(world, REPLICA_CHANGED, replica, unit.serial, state)


@compiled
def end_request(world: World, request: int, outcome: int) -> None:
    """Write the request's record and free its slot."""
    clock, asked = world.clock[0], world.requests[request]
    asked.outcome, asked.finished_s = outcome, clock.now_s
    if outcome == COMPLETED:
        window = world.window[0]
        window.completed += 1
        window.output_tokens += asked.output_tokens
        window.duration_s += clock.now_s - asked.arrival_s
    world.finished[clock.finished] = asked
    clock.finished += 1
    clock.active -= 1
    if outcome != SHED:
        notify(world, ENDED, request, asked.number, asked.output_tokens if outcome == COMPLETED else NONE)
    free_slot(world, request)


@compiled
def free_slot(world: World, request: int) -> None:
    """Put a request's slot on the list of free ones."""
    clock, asked = world.clock[0], world.requests[request]
    asked.number = NONE
    asked.next = clock.free_request
    clock.free_request = request
    clock.free_requests += 1


@compiled
def count_gap(world: World, gap_s: float, times: int) -> None:
    """Count `times` gaps between tokens of `gap_s` seconds."""
    window = world.window[0]
    window.gaps += times
    window.gap_s += gap_s * times
    add(world.histograms[ITL], gap_s, times)


@compiled
def count_first_token(world: World, request: int, at_s: float) -> None:
    """The request's first token leaves at `at_s`."""
    asked, window = world.requests[request], world.window[0]
    asked.first_token_s = at_s
    ttft_s = at_s - asked.arrival_s
    window.first_tokens += 1
    window.ttft_s += ttft_s
    add(world.histograms[TTFT], ttft_s, 1)
    notify(world, FIRST_TOKEN, request, asked.number, 0)
