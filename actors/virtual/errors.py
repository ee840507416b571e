"""How the virtual connector can say no.

ScalingError(Exception)
├── BadProposal              targets that name no pool, or a count that is none
├── UnknownDecision          an id that was never issued
├── TooManyWaiters           the coordinator holds as many waiting calls as it can
├── UnreadableLedger         what the store holds cannot be read; ids might go back, so nothing starts
└── CoordinatorUnreachable   the coordinator does not answer, or there is none
"""


class ScalingError(Exception):
    """Base of what the virtual connector raises; the text is one line for people."""


class BadProposal(ScalingError):
    """Targets that name no pool, or a count that is none."""


class UnknownDecision(ScalingError):
    """An id that was never issued."""


class TooManyWaiters(ScalingError):
    """The coordinator holds as many waiting calls as it can."""


class UnreadableLedger(ScalingError):
    """What the store holds cannot be read."""


class CoordinatorUnreachable(ScalingError):
    """The coordinator does not answer, or there is none."""
