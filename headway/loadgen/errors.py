"""The exception of `headway.loadgen`.

LoadError (Exception): load that cannot be sent at all; one line that names address or setting and the
fault. What befalls single requests is no exception but their outcome.
"""


class LoadError(Exception):
    """Load that cannot be sent: one line that names the address or the setting and what is wrong."""
