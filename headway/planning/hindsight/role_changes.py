"""Replicas that change their role, where one pool rises and another one has some to spare.

Theory. What is started serves a lead later and costs a GPU more; what serves in another pool need only drain
and switch. A pool that is held above what is enough for it (see `ReleaseDelay`) pays for the chance of a
return, so it gives first:

    spare  = min(target, ready) − max(enough, min_replicas)          of a pool that does not rise
    rise   = target − desired                                        of one that does

Every pool that rises takes what is spare, one for one, until either is used up; the giver's target falls by
as much, so the sum of the targets is that much smaller than without. Where the sum still exceeds the GPU
budget, what a pool needs takes the place of what is enough to release it to: hindsight chose those needs to
fit. Once targets fit limits and GPU budget, whatever rises in one pool while serving replicas go from another
changes its role instead of being started: with a budget that binds, the only quick way to move a GPU.
Replicas of different GPUs never change.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

from headway.planning.hindsight.state import ReleaseDelay
from headway.planning.reasons import ordered
from headway.planning.types import PoolLimits, PoolState, Role, RoleChanges


def give_to_rising(
    delays: Mapping[Role, ReleaseDelay],
    enough: Mapping[Role, int],
    pools: Mapping[Role, PoolState],
    limits: Mapping[Role, PoolLimits],
) -> Mapping[Role, ReleaseDelay]:
    """The same after pools that rise have been given what others have to spare; no target rises by it."""
    wanted = {role: min(delay.target, limits[role].max_replicas) for role, delay in delays.items()}
    kept = {role: max(enough[role], limits[role].min_replicas) for role in delays}
    gifts = _matched(wanted, kept, pools, limits)
    given = {role: sum(count for (giver, _), count in gifts.items() if giver is role) for role in delays}
    return {role: replace(delay, target=delay.target - given[role]) for role, delay in delays.items()}


def role_changes(
    targets: Mapping[Role, int], pools: Mapping[Role, PoolState], limits: Mapping[Role, PoolLimits]
) -> RoleChanges:
    """Replicas that change their role on the way to `targets`; of a giver `targets` are left serving."""
    desired = {role: pools[role].desired for role in targets}
    return _matched({**desired, **_rising(targets, pools)}, targets, pools, limits)


def _matched(
    wanted: Mapping[Role, int],
    kept: Mapping[Role, int],
    pools: Mapping[Role, PoolState],
    limits: Mapping[Role, PoolLimits],
) -> RoleChanges:
    """Rises of `wanted` over the desired counts, met by what pools without one have above `kept`."""
    rises = {role: count - pools[role].desired for role, count in _rising(wanted, pools).items()}
    spare = {role: min(wanted[role], pools[role].ready) - kept[role] for role in wanted if role not in rises}
    changes: dict[tuple[Role, Role], int] = {}
    for taker, giver in product(ordered(rises), ordered(spare)):
        count = min(spare[giver], rises[taker])
        if count > 0 and limits[giver].gpus_per_replica == limits[taker].gpus_per_replica:
            changes[giver, taker] = count
            spare[giver] -= count
            rises[taker] -= count
    return changes


def _rising(targets: Mapping[Role, int], pools: Mapping[Role, PoolState]) -> dict[Role, int]:
    return {role: count for role, count in targets.items() if count > pools[role].desired}
