"""The phases that a replica can serve, as values that planning, routing and simulation share."""

from enum import StrEnum


class Role(StrEnum):
    """The phase that a replica serves; the values are those of `RoleName` in settings."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"
