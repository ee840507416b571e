"""Clients that do not wait for ever: one without a first token gives up, and comes again.

An attempt that has no first token `patience_s` after it arrived is aborted wherever it waits, as is its
prompt at the end of the iteration that computes it. A first token that is being made is waited for. The
client comes again about `retry_after_s` after it gave up, or after its attempt was shed or failed, with the
same prompt, and at most `retries` times; then it has given up for good. A request that no engine can hold is
not tried again.

To the client all its attempts are one request, judged from its first arrival. To a router each is a request
of its own, as it is to a gateway, and one that left has failed.
"""

from dataclasses import dataclass
from math import inf

from headway.engine.kernel.batch import catch_up
from headway.engine.kernel.layout import GAVE_UP, GIVE_UP, NONE, KernelState, push
from headway.engine.kernel.lifecycle import forget, withdraw
from headway.engine.kernel.state import end_attempt
from interp.jit import compiled


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """How long clients wait for a first token, how often they try again, and after how many seconds."""

    patience_s: float = inf
    retries: int = 0
    retry_after_s: float = 10.0


@compiled
def expect(state: KernelState, request: int) -> None:
    """Let the client wait for its first token from now on."""
    clock, patience_s = state.clock[0], state.settings[0].patience_s
    if patience_s < inf:
        state.requests[request].gives_up_s = clock.now_s + patience_s
        push(clock, state.events, clock.now_s + patience_s, GIVE_UP, request, 0)


@compiled
def give_up(state: KernelState, request: int) -> None:
    """The client leaves, unless it has a token or is no more the one that waits until now."""
    asked = state.requests[request]
    if asked.number == NONE or asked.gives_up_s != state.clock[0].now_s or asked.first_token_s >= 0.0:
        return
    if asked.decode_started_s >= 0.0:
        catch_up(state, asked.decode_replica)  # its token may have left in mid-stretch
    if asked.first_token_s >= 0.0:
        return
    if withdraw(state, request):
        asked.version += 1
        end_attempt(state, request, GAVE_UP)
    else:
        expect(state, request)


@compiled
def come_again(state: KernelState, request: int) -> None:
    """The next attempt arrives."""
    asked = state.requests[request]
    forget(state, request)
    asked.arrival_s, asked.first_token_s = state.clock[0].now_s, -1.0
    state.window[0].repeats += 1
