"""The heads of the lines that wait, in one table with a column per line, and compiled loops over it.

`held_lines` writes the table. The loops find the next head and one that is lost by now: some nanoseconds a
line. A rank is (its key is ahead, its user is, tier, key, sequence), least first.
"""

from enum import IntEnum
from math import inf

import numpy as np
from numpy.typing import NDArray

from headway.routing.fleet.table import FloatArray
from headway.routing.queue.fair_shares import KeyRow
from headway.routing.types import RouteRequest
from interp.jit import compiled_in_place

Marks = NDArray[np.bool_]

CRITICAL_TIER, PLAIN_TIER, LOST_TIER = 0, 1, 2
ANY_ROLE = -1


class RequestClass(IntEnum):
    """What a request may expect where its SLO cannot be kept (`judge.DEMANDS`)."""

    NAMES_SLO = 0
    """It is shed."""
    NAMES_NONE = 1
    CRITICAL = 2
    CRITICAL_AMONG_TENANTS = 3
    """As critical, but what it gains may be another tenant's loss."""

    @classmethod
    def of(cls, request: RouteRequest) -> "RequestClass":
        """The class of a request of the only tenant."""
        if request.critical:
            return cls.CRITICAL
        return cls.NAMES_SLO if request.slo.given else cls.NAMES_NONE


class HeadRow(IntEnum):
    """The rows of the table of heads."""

    LIVE = 0
    """1 for a line, 0 for a column that is free."""
    TIER = 1
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
    ROLE = 11
    """The place among the deployment's roles of that which had no room; ANY_ROLE where it was not asked."""
    FORCED = 12
    """1 where it has waited as long as it may."""
    HOME_UNTIL_S = 13
    """The time until which it waits for its home."""
    PROFILE = 14
    """The place of its profile in `UrgencyQueue.profiles`."""
    KEY = 15
    """The number of its tenant's key in `TenantShares.table`."""
    TENANT = 16
    """The place of its tenant in `UrgencyQueue`."""
    LATE_FROM_S = 17
    """The time from which a critical one has waited so long that it may miss its SLO."""
    CLASS = 18
    """RequestClass, of the only tenant."""
    LATEST_S = 19
    """The first latest start of those in the line, whether or not that one is the head."""


@compiled_in_place
def first_of(heads: FloatArray, marks: Marks, every: bool, keys: FloatArray, ahead_from: float) -> int:
    """The column of least rank, −1 without one."""
    best, least = -1, 0
    for column in range(heads.shape[1]):
        if not (every or marks[column]) or heads[HeadRow.LIVE, column] == 0.0:
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
    return ahead < other_ahead or (ahead == other_ahead and _before(heads, column, other))


@compiled_in_place
def _before(heads: FloatArray, column: int, other: int) -> bool:
    """True if the head of a column is of less rank than that of another that is no more ahead."""
    if heads[HeadRow.TIER, column] != heads[HeadRow.TIER, other]:
        return bool(heads[HeadRow.TIER, column] < heads[HeadRow.TIER, other])
    if heads[HeadRow.KEY_S, column] != heads[HeadRow.KEY_S, other]:
        return bool(heads[HeadRow.KEY_S, column] < heads[HeadRow.KEY_S, other])
    return bool(heads[HeadRow.SEQUENCE, column] < heads[HeadRow.SEQUENCE, other])


@compiled_in_place
def waits_for(heads: FloatArray, column: int, role: int) -> bool:
    """True if that head may be waiting for the role in this place."""
    return bool(heads[HeadRow.ROLE, column] == role or heads[HeadRow.ROLE, column] == ANY_ROLE)


@compiled_in_place
def restart(heads: FloatArray, tenant: float, start: float) -> None:
    """The lines of a tenant begin there."""
    for column in range(heads.shape[1]):
        if heads[HeadRow.TENANT, column] == tenant:
            heads[HeadRow.START, column] = start


@compiled_in_place
def next_lost_s(heads: FloatArray) -> float:
    """The time after which the next one is lost; infinite where none can be saved."""
    next_s = inf
    for column in range(heads.shape[1]):
        if heads[HeadRow.LIVE, column] > 0.0 and heads[HeadRow.TIER, column] < LOST_TIER:
            next_s = min(next_s, heads[HeadRow.LATEST_S, column])
    return next_s


@compiled_in_place
def lost_by(heads: FloatArray, now_s: float) -> int:
    """The column of a line in which one can be saved no longer, −1 without one."""
    for column in range(heads.shape[1]):
        hopeful = heads[HeadRow.LIVE, column] > 0.0 and heads[HeadRow.TIER, column] < LOST_TIER
        if hopeful and heads[HeadRow.LATEST_S, column] < now_s:
            return column
    return -1
