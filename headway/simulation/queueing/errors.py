"""The exception of `headway.simulation.queueing`.

QueueingError (ValueError): a set-up that cannot be simulated; one line naming pattern or consumer and fault.
"""


class QueueingError(ValueError):
    """A set-up that cannot be simulated; the text names the pattern or the consumer."""
