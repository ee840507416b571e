"""What computing a prompt at a replica costs everybody, in request-seconds.

Document 004 weighs P's queue and the transfer (delay of one request) against half of the prefill time if D
decodes at all (delay of an unknown number of others). Here both sides are sums of E2E delay over requests,
so that they have one unit: one request later by one second is one request-second, whether it waits for its
first token or for its last. For a prompt at replica x (D or P):

    u_x   uncached prompt tokens                 T_x   engine seconds that they take, from the profile
    Q_x   seconds of prefill queued before it    C_x   iterations that carry it, ⌈u_x / chunk⌉, at least 1
    i_x   seconds of a decode iteration there    X     seconds that moving its KV from P to D takes
    N_x   requests decoding, or queued ahead and decoding by then; r_x their mean remaining tokens
    λ_x   requests per second that come to queue at x
    h_x   share of prompt tokens that are found in its prefix cache

    own    O_x = Q_x + T_x + C_x i_x             until its first token, less X
    decode G_x = N_x T_x min(1, r_x / C_x)       each decode loses T over C iterations, and no more than
                                                 the share in which it still takes part
    behind B_x = λ_x (Q_x T_x + T_x² / 2)        who comes while the queue lasts waits T longer, who comes
                                                 while the prompt is computed half of T on average
    evict  E_x = h_x / (1 − h_x) T_x (1 + N_x)   what the prompt displaces from the cache would have saved as
                                                 many tokens as others do there, to their requests and to
                                                 those that decode beside them

    offload ⟺ benefit > cost
    benefit = (O_D − O_P − X)⁺ + G_D + B_D       cost = (O_P + X − O_D)⁺ + G_P + B_P + E_P

D caches the prompt either way, computed or received, so E counts for P alone. It is an upper estimate: an
LRU cache drops first what is least likely to come again.

P is a mixed replica: its own decodes and its own arrivals count as D's do, and a prompt that D has cached
and P has not is dearer there (u_P > u_D). With two equally busy, equally warm replicas the sides differ by X
alone, against offload: it moves work, it removes none. It pays where P has fewer decodes or a shorter queue
by more than what the transfer and the lost cache are worth.

A chunk's time adds to its iteration (see `headway.simulation.work`), so decodes lose all of T; the
document's half stands for engines that overlap the two. Left out: that decodes ahead may end while the queue
is worked off, that a delayed queue delays who joins it later still, and that a router which places new
sessions by load will soon send some to a P that is idle now.
"""

from dataclasses import dataclass
from math import ceil

from headway.routing.offload.types import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """`own_s` is seconds of this request (queue included); the others are request-seconds of others."""

    own_s: float
    decode_s: float
    behind_s: float
    evicted_s: float

    @property
    def others_s(self) -> float:
        """What everybody else loses while the prompt is computed."""
        return self.decode_s + self.behind_s


def delays_at(site: Site, chunk_tokens: int) -> Delays:
    """The delays of computing the prompt at `site`; NaN where its prefill time is unknown."""
    iterations = _iterations(site.uncached_tokens, chunk_tokens)
    share = min(1.0, site.remaining_tokens / iterations)
    decodes = site.running + site.waiting
    return Delays(
        own_s=site.queue_s + site.prefill_s + iterations * site.iteration_s,
        decode_s=decodes * site.prefill_s * share,
        behind_s=site.arrival_rps * site.prefill_s * (site.queue_s + site.prefill_s / 2.0),
        evicted_s=site.reuse * site.prefill_s * (1 + decodes),
    )


def _iterations(tokens: int, chunk_tokens: int) -> int:
    return max(1, ceil(tokens / chunk_tokens)) if chunk_tokens > 0 else 1
