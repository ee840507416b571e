"""The gateways of one router: whose request is whose, and what each has yet to be told, its letters.

A gateway that says nothing for `SILENT_S` is gone, and its requests with it. A request that was found on a
replica and that no gateway has named yet is nobody's, and kept for `ORPHAN_S`, since it loads the replica all
the same. What follows for requests of nobody goes to nobody.
"""

from dataclasses import dataclass, field
from math import inf

from actors.routing.messages import Letters
from headway.routing.types import Outcome, Placement, Shed

SILENT_S = 30.0
ORPHAN_S = 30.0
NOBODY = ""


@dataclass(slots=True)
class Gateway:
    """One that has said hello. `shift_s` is the router's clock less the gateway's."""

    session: int
    heard_s: float
    shift_s: float
    figures_s: float = -inf
    placements: list[Placement] = field(default_factory=list)
    sheds: list[Shed] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Owned:
    """Who has a request, and where the router put it; None while it is held."""

    gateway: str
    since_s: float
    placement: Placement | None = None


class Gateways:
    """By name; requests by id."""

    def __init__(self) -> None:
        self._gateways: dict[str, Gateway] = {}
        self._owned: dict[str, Owned] = {}

    def __len__(self) -> int:
        return len(self._gateways)

    def get(self, name: str) -> Gateway | None:
        """The gateway of that name, None if it is not known."""
        return self._gateways.get(name)

    def greeted(self, name: str, session: int, now_s: float, shift_s: float) -> Gateway:
        """It begins a session; what it had to be told before is void. Its requests stay its own."""
        gateway = self._gateways[name] = Gateway(session, now_s, shift_s)
        return gateway

    def own(self, request_id: str, name: str, now_s: float, placement: Placement | None = None) -> None:
        """The request is this gateway's, or `NOBODY`'s."""
        self._owned[request_id] = Owned(name, now_s, placement)

    def owned(self, request_id: str) -> Owned | None:
        """Who has it, None if nobody does."""
        return self._owned.get(request_id)

    def release(self, request_id: str) -> bool:
        """It has ended; whether anybody had it."""
        return self._owned.pop(request_id, None) is not None

    def requests(self, name: str) -> list[str]:
        """All that a gateway has."""
        return [request_id for request_id, owned in self._owned.items() if owned.gateway == name]

    def deliver(self, outcome: Outcome) -> None:
        """Write down what follows, and write to those whose requests these are."""
        for placement in outcome.placements:
            owned = self._owned.get(placement.request_id)
            if owned is not None:
                owned.placement = placement
            if owned is not None and (gateway := self._gateways.get(owned.gateway)) is not None:
                gateway.placements.append(later(placement, -gateway.shift_s))
        for shed in outcome.sheds:
            if (gateway := self._released_by(shed.request_id)) is not None:
                gateway.sheds.append(shed)

    def give_back(self, request_id: str) -> None:
        """Its gateway is to place it."""
        if (gateway := self._released_by(request_id)) is not None:
            gateway.failed.append(request_id)

    def take(self, now_s: float, name: str) -> Letters:
        """The letters of a gateway, which are hers then; it has been heard of."""
        gateway = self._gateways.get(name)
        if gateway is None:
            return Letters(known=False)
        gateway.heard_s = now_s
        letters = Letters(tuple(gateway.placements), tuple(gateway.sheds), tuple(gateway.failed))
        gateway.placements, gateway.sheds, gateway.failed = [], [], []
        return letters

    def with_letters(self) -> list[str]:
        """Those that have yet to be told something."""
        return [name for name, one in self._gateways.items() if one.placements or one.sheds or one.failed]

    def forget_silent(self, now_s: float) -> list[str]:
        """Forget who has gone: the requests of those, and what has been nobody's for too long."""
        for name in [name for name, one in self._gateways.items() if one.heard_s < now_s - SILENT_S]:
            del self._gateways[name]
        return [
            request_id
            for request_id, owned in self._owned.items()
            if owned.gateway not in self._gateways
            and (owned.gateway != NOBODY or owned.since_s < now_s - ORPHAN_S)
        ]

    def _released_by(self, request_id: str) -> Gateway | None:
        owned = self._owned.pop(request_id, None)
        return None if owned is None else self._gateways.get(owned.gateway)


def later(placement: Placement, shift_s: float) -> Placement:
    """The placement on a clock that is ahead by `shift_s`."""
    if placement.deadline_s == inf:
        return placement
    return placement._replace(deadline_s=placement.deadline_s + shift_s)
