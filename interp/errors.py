"""What `interp` raises.

InterpError                 any fault in a question put to a surface (a context of 0 tokens, say)
└── ProfileError            a profile that cannot be read, is not valid, or cannot be written
"""


class InterpError(ValueError):
    """A question that no surface can answer; the message names the argument."""


class ProfileError(InterpError):
    """A profile directory or table that is not valid; the message names the file and the key."""
