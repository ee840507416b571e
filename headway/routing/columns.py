"""The quantities that the fleet's table holds per replica."""

from collections.abc import Mapping
from enum import IntEnum
from math import inf


class Column(IntEnum):
    """The rows of the table; counts of requests, tokens, seconds."""

    WAITING = 0
    """Requests whose prompts are still to be computed here."""
    COMING = 1
    """Requests that will decode here and whose prompts are not computed yet, here or elsewhere."""
    RUNNING = 2
    """Requests in their decode phase here."""
    PREFILL_TOKENS = 3
    """Uncached prompt tokens of those waiting."""
    WORK_S = 4
    """What computing them is estimated to take."""
    BUSY_UNTIL_S = 5
    """When that is estimated to be done."""
    KV_TOKENS = 6
    """Expected context tokens of those running, Σ input + output / 2."""
    COMING_TOKENS = 7
    """The same of those coming."""
    RESERVED_TOKENS = 8
    """KV tokens that all requests here will fill in the end."""
    OUTPUT_TOKENS = 9
    """Output tokens that those running and coming are expected to have in the end."""
    DUTY = 10
    """Share of the time that goes to prompts, smoothed, as of DUTY_AT_S."""
    DUTY_AT_S = 11
    TPOT_SLO_S = 12
    """The tightest TPOT SLO of those that decode here or will."""
    TTFT_SLACK_S = 13
    """The least slack of those waiting: TTFT SLO − TTFT predicted, of those that were to keep it."""
    OTHER_REQUESTS = 14
    """Requests that the engine reports beyond ours."""
    OTHER_TOKENS = 15
    """KV tokens that the engine reports beyond ours."""
    LOAD = 16
    """Share of its capacity for patterns (document 003) that is taken."""
    CAPACITY_TOKENS = 17
    """KV tokens that fit; infinite where that is unknown."""
    KIND = 18
    """Index of the profile of its GPU type, −1 for one without."""


EMPTY: Mapping[Column, float] = {
    Column.TPOT_SLO_S: inf,
    Column.TTFT_SLACK_S: inf,
    Column.CAPACITY_TOKENS: inf,
    Column.BUSY_UNTIL_S: -inf,
    Column.KIND: -1.0,
}
"""What a new replica's cells hold, where that is not 0."""
