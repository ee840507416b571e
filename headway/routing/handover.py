"""From the prompt computed at P to the first token at D, in a mixed pool: what of it the transfer took.

    transfer = (first token − prompt computed) − wait
    wait     = (i + w) / 2 + i' + w     the rest of the iteration under way when the KV comes, half of it on
                                        average, and one of its own; an idle D has no first part

for a batch of n sequences with K tokens at D when the prompt is computed: i = ITL(n, K), i' = ITL(n + 1, K +
input), w the work of the chunk of D's own prompts beside it, 0 where none waits. All by the books.

What is left beside the transfer: that D changes while the KV travels, that iterations with much work are met
more often than their share, and what lies between engine and router (live, a call of the decode replica).
Where the books say that D's batch or KV has no room, the wait is unknown and nothing is measured.

The nominal time is that of the tokens that D lacks, which are all that is sent. Disaggregated pools keep
the rule: the latency model learns their TTFT whole.
"""

from headway.routing.counters import Figures
from headway.routing.fleet import Fleet
from headway.routing.latency import Latency
from headway.routing.offload.transfer import LEAST, MOST, TransferEstimate
from headway.routing.record import Record


class Handovers:
    """Transfers of one router's offloaded prompts: expected, and measured."""

    def __init__(self, fleet: Fleet, latency: Latency) -> None:
        self._fleet, self._latency = fleet, latency
        self.estimate = TransferEstimate()

    def seconds(self, tokens: int) -> float:
        """What moving the KV of so many tokens is expected to take."""
        return self.estimate.seconds(self._latency.rules.transfer_s(tokens))

    def start_from(self, factor: float) -> None:
        """Go on from a factor that was learnt before; one that is no number, or not positive, is ignored."""
        if factor > 0.0:
            self.estimate = TransferEstimate(factor=min(max(factor, LEAST), MOST))

    def sent(self, record: Record, tokens: int) -> None:
        """A prompt is computed at P, and the KV of `tokens` sets out; to be told before the books are."""
        assert record.decode is not None, "it has been placed"
        wait_s = self._latency.joining_s(self._fleet.table, record.decode.slot, record.request.input_tokens)
        record.handover = self._latency.rules.transfer_s(tokens), wait_s

    def arrived(self, now_s: float, record: Record) -> None:
        """Its first token left. Without the time of its prompt it says nothing."""
        if record.handover is not None and record.prefilled_s >= 0.0:
            nominal_s, wait_s = record.handover
            self.estimate = self.estimate.observe(nominal_s, now_s - record.prefilled_s - wait_s)
        record.handover = None

    def figures(self) -> Figures:
        """`factor` and `measured`, once anything was."""
        if not self.estimate.measured:
            return {}
        return {("factor",): self.estimate.factor, ("measured",): float(self.estimate.measured)}
