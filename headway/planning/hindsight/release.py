"""From what a pool needs now to its target: raised at once, released slowly.

A raise applies at once. A release waits until less has been enough in CONFIRM decisions in a row and
`hold_s` have passed since the last raise; it then goes to the largest of those counts, and only if that frees
at least SMALLEST of the pool: a removal that comes back costs a start and its lead. What is enough to go down
to has to hold more than what is needed to stay (the policy asks hindsight with a part of the loss budget), so
that a count at the edge of the budget is not given up and asked for in turns.
"""

from dataclasses import dataclass
from math import ceil

CONFIRM = 4
SMALLEST = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """One pool: its target, the latest counts that were enough and lower, oldest first, the last raise."""

    target: int
    lower: tuple[int, ...] = ()
    raised_s: float = float("-inf")

    def need(self, now_s: float, replicas: int, enough: int, hold_s: float) -> "Hold":
        """After one more decision; `target` is what to ask for. `enough` is at least `replicas`."""
        if replicas > self.target:
            return Hold(target=replicas, raised_s=now_s)
        if enough >= self.target:
            return Hold(target=self.target, raised_s=self.raised_s)
        lower = (*self.lower, enough)[-CONFIRM:]
        due = len(lower) == CONFIRM and now_s - self.raised_s >= hold_s
        if due and self.target - max(lower) >= ceil(SMALLEST * self.target):
            return Hold(target=max(lower), raised_s=self.raised_s)
        return Hold(target=self.target, lower=lower, raised_s=self.raised_s)
