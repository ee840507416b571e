"""One replica: its place in the fleet's table, and who is there."""

from typing import TYPE_CHECKING

from headway.config.roles import Role
from headway.routing.lazy_heap import LazyHeap
from headway.routing.offload.samples import UtilisationSamples
from headway.routing.types import ReplicaId

if TYPE_CHECKING:
    from headway.routing.record import Record


class Replica:
    """`alive` until it is GONE. The queues hold records by urgency, each under its record's number.

    `running`   those that decode here or will, by TPOT SLO
    `waiting`   those whose prompts are to be computed here, by slack of TTFT

    `utilisation` are samples of what its engine reports, None before it says how long it has computed.
    """

    __slots__ = ("alive", "gpu_type", "name", "ready", "role", "running", "slot", "utilisation", "waiting")

    def __init__(self, name: ReplicaId, slot: int, role: Role, gpu_type: str) -> None:
        self.name, self.slot, self.role, self.gpu_type = name, slot, role, gpu_type
        self.alive, self.ready = True, False
        self.running: LazyHeap[Record] = LazyHeap()
        self.waiting: LazyHeap[Record] = LazyHeap()
        self.utilisation: UtilisationSamples | None = None
