"""The heads of the lines that wait, in one table with a column per line, and compiled loops over it.

`held_lines` writes the table. The loops find the next head: some nanoseconds a line. A rank is (its key is
ahead, its user is, lost, key, sequence), least first.
"""

from dataclasses import dataclass
from enum import IntEnum
from math import inf

import numpy as np
from numpy.typing import NDArray

from headway.routing.fleet.table import FloatArray
from headway.routing.queue.fair_shares import KeyRow
from headway.routing.types import RouteRequest
from interp.jit import compiled_in_place

Marks = NDArray[np.bool_]

ANY_ROLE, FREE = -1, -2

CRITICAL_WORTH = 3.0
"""Requests that are not critical, beside one that is."""


class RequestClass(IntEnum):
    """What a request may expect where its SLO cannot be kept (`judge`)."""

    NAMES_SLO = 0
    """It is shed."""
    NAMES_NONE = 1
    CRITICAL = 2
    """It is served late rather than shed."""

    @classmethod
    def of(cls, request: RouteRequest) -> "RequestClass":
        """The class of a request."""
        if request.critical:
            return cls.CRITICAL
        return cls.NAMES_SLO if request.slo.given else cls.NAMES_NONE


class HeadRow(IntEnum):
    """The rows of the table of heads."""

    ROLE = 0
    """The place among the deployment's roles of that which had no room; ANY_ROLE where it was not asked, FREE
    for a column without a line."""
    LOST = 1
    """1 where its SLO can be kept no longer."""
    KEY_S = 2
    """When it is due; when it came to wait, if it is lost, or in order of age (`held_lines`)."""
    SEQUENCE = 3
    START = 4
    """Where its user's next request begins within the key (`fair_shares`)."""
    INPUT_TOKENS = 5
    OUTPUT_TOKENS = 6
    """Output tokens expected."""
    CACHED_TOKENS = 7
    """Prompt tokens that its home is thought to have."""
    HOME = 8
    """The slot of the replica that has most of its prompt, −1 if that is not worth a name."""
    TTFT_BY_S = 9
    """Arrival + TTFT SLO."""
    TPOT_SLO_S = 10
    HOME_UNTIL_S = 11
    """The time until which it waits for its home."""
    PROFILE = 12
    """The place of its profile in `HeldQueue.profiles`."""
    KEY = 13
    """The number of its tenant's key in `TenantShares.table`."""
    CLASS = 14
    """RequestClass."""
    LATEST_S = 15
    """Its latest start; infinite if it is lost, or for a column that is free."""
    MORE_S = 16
    """How much later the last of the line has to start."""


@dataclass(slots=True)
class LineSearch:
    """A search for the next line among those that are `open`.

    It `fits` where it may find room, as far as was looked: those that rank after `column`, the next one, are
    not judged. Of that one the first request that is due `late_s` later than the head may; −1 for no line.
    """

    open: Marks
    fits: Marks
    column: int = -1
    late_s: float = inf


@compiled_in_place
def first_of(heads: FloatArray, marks: Marks, keys: FloatArray, ahead_from: float, best: int) -> int:
    """The column of least rank of those that are marked and `best`, −1 without one."""
    least = ahead_of(heads, best, keys, ahead_from) if best >= 0 else 0
    for column in range(heads.shape[1]):
        if not marks[column] or heads[HeadRow.ROLE, column] == FREE:
            continue
        ahead = ahead_of(heads, column, keys, ahead_from)
        if best < 0 or precedes(heads, column, ahead, best, least):
            best, least = column, ahead
    return best


@compiled_in_place
def ahead_of(heads: FloatArray, column: int, keys: FloatArray, ahead_from: float) -> int:
    """2 where its key is ahead of others, and 1 more where its user is of others of the key."""
    key = int(heads[HeadRow.KEY, column])
    user_ahead = heads[HeadRow.START, column] > keys[KeyRow.USERS_AHEAD_FROM, key]
    return 2 * int(keys[KeyRow.START, key] > ahead_from) + int(user_ahead)


@compiled_in_place
def precedes(heads: FloatArray, column: int, ahead: int, other: int, other_ahead: int) -> bool:
    """True if the head of `column` is of less rank than that of `other`, each so far `ahead`."""
    if ahead != other_ahead:
        return ahead < other_ahead
    for row in (HeadRow.LOST, HeadRow.KEY_S, HeadRow.SEQUENCE):
        if heads[row, column] != heads[row, other]:
            return bool(heads[row, column] < heads[row, other])
    return False
