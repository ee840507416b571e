"""The pools as the ledger knows them: nobody reports replicas, so answers stand for them.

    there    = what the newest completed decision asked for; before any, the pool's floor: whoever runs the
               deployment has started it with its minimum
    desired  = what the newest decision asks for; where that failed, `there`: nobody took it as a target
    ready    = min(there, desired)     starting = what is missing     draining = what is too many

so that desired = ready + starting always.
"""

from collections.abc import Mapping

from actors.connectors.protocol import PoolCounts
from actors.virtual.ledger import Ledger, Rules
from headway.planning import Role


def pool_counts(ledger: Ledger, rules: Rules) -> dict[Role, PoolCounts]:
    """The four counts of every configured pool."""
    there: Mapping[Role, int] = ledger.completed.targets if ledger.completed else {}
    newest = ledger.decision
    wanted: Mapping[Role, int] = newest.targets if newest and newest.status != "failed" else there
    return {
        role: _counts(wanted.get(role, there.get(role, floor)), there.get(role, floor))
        for role, floor in rules.floor.items()
    }


def _counts(desired: int, there: int) -> PoolCounts:
    return PoolCounts(
        desired=desired,
        starting=max(0, desired - there),
        ready=min(there, desired),
        draining=max(0, there - desired),
    )
