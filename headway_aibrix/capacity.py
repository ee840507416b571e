"""How many requests of one kind a replica bears under an SLO (AIBrix's pull routing).

    Capacity = RPS × E2E      Little's law: requests in the replica at the largest rate that keeps the SLO
    Load     = 1 / Capacity   a replica has room while the loads of its requests and of the newcomer sum to
                              at most 1

Loads are those of the request itself: its own lengths, the prompt tokens that the replica has cached, and
what is left of its SLO (`LoadQuery`). RPS and E2E come from a source: profile surfaces (`surfaces`) or an
AIBrix profile (`profiles`).

    no rate keeps the SLO           capacity 0, load infinite
    one alone keeps it              capacity at least 1, load at most 1: an idle replica always has room
    GPU type without a source       that of the default type ""; without one, and where a source is silent
                                    about the role, what stands in the loads already
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from headway.config import Role
from headway.routing.fleet.table import FloatArray, SlotArray
from headway.routing.types import RequestSlo

DEFAULT_GPU_TYPE = ""


class LoadQuery(NamedTuple):
    """A request in one role: its lengths, of which `output_tokens` are expected, and what is left of its
    SLO."""

    input_tokens: float
    output_tokens: float
    role: Role
    slo: RequestSlo


class Candidates(NamedTuple):
    """Replicas by their slots in the fleet's table, and prompt tokens that each has cached, f8[C].

    A source answers for those of its own `kind` (FleetRow.KIND).
    """

    table: FloatArray
    slots: SlotArray
    cached: FloatArray
    kind: int


@runtime_checkable
class CapacitySource(Protocol):
    """One GPU type's capacities."""

    def fill(self, asked: LoadQuery, among: Candidates, out: FloatArray) -> None:
        """Write the load of each candidate of `among.kind` into `out` f8[C]; infinite if it never fits.

        Nothing is written where nothing is known of the role.
        """


class CapacityTable:
    """Sources of capacities by GPU type."""

    def __init__(self, sources: Mapping[str, CapacitySource]) -> None:
        self._sources = dict(sources)

    def fill(self, asked: LoadQuery, gpu_type: str, among: Candidates, out: FloatArray) -> None:
        """The part of each candidate of that type that one request takes, into `out` f8[C]."""
        source = self._sources.get(gpu_type) or self._sources.get(DEFAULT_GPU_TYPE)
        if source is not None:
            source.fill(asked, among, out)
