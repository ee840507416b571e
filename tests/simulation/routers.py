"""Routers for tests: they do what they are told, and write down what they hear."""

from collections.abc import Callable, Sequence
from math import inf

from headway.config import Role
from headway.routing import Placement, ReplicaState, RoutingOutcome, Shed, ShedReason


def place(request_id: str, prefill: str, decode: str | None = None) -> Placement:
    return Placement(
        request_id=request_id, prefill_replica=prefill, decode_replica=decode or prefill, profile="scripted"
    )


def shed(request_id: str) -> Shed:
    return Shed(request_id=request_id, reason=ShedReason.NO_HEADROOM)


class Scripted:
    """Asks `answer(router, event, now_s, request_id)` for each event; None is nothing.

    `ready` names the ready replicas by role, in the order in which they came; `heard` keeps every event.
    """

    def __init__(self, answer: Callable, due_s: Sequence[float] = ()) -> None:
        self.answer, self.due_s = answer, list(due_s)
        self.ready = {role: [] for role in Role}
        self.requests, self.heard, self.live = {}, [], set()

    @property
    def next_due_s(self) -> float:
        return self.due_s[0] if self.due_s else inf

    @property
    def queued(self) -> int:
        return 0

    def metrics(self):
        return {"heard": {("all",): float(len(self.heard))}}

    def submit(self, now_s, request):
        self.requests[request.request_id] = request
        self.live.add(request.request_id)
        return self._asked("submit", now_s, request.request_id)

    def prefilled(self, now_s, request_id):
        return self._asked("prefilled", now_s, request_id)

    def first_token(self, now_s, request_id):
        return self._asked("first_token", now_s, request_id)

    def complete(self, now_s, request_id, output_tokens):
        self.live.remove(request_id)
        return self._asked("complete", now_s, request_id)

    def failed(self, now_s, request_id, *, retry):
        if not retry:
            self.live.remove(request_id)
        return self._asked("lost" if retry else "failed", now_s, request_id)

    def replica_changed(self, now_s, update):
        ready = self.ready[update.role]
        if update.state is ReplicaState.READY:
            ready.append(update.replica)
        elif update.replica in ready:
            ready.remove(update.replica)
        return self._asked(update.state.value, now_s, update.replica)

    def expire(self, now_s):
        while self.next_due_s <= now_s:
            self.due_s.pop(0)
        return self._asked("expire", now_s, "")

    def times(self, event: str) -> dict[str, float]:
        """When each was last heard of with this event."""
        return {name: at_s for kind, at_s, name in self.heard if kind == event}

    def _asked(self, event: str, now_s: float, name: str) -> RoutingOutcome:
        assert not self.heard or now_s >= self.heard[-1][1], "time goes on"
        self.heard.append((event, now_s, name))
        answers = self.answer(self, event, now_s, name) or []
        placements = tuple(each for each in answers if isinstance(each, Placement))
        sheds = tuple(each for each in answers if isinstance(each, Shed))
        self.live -= {each.request_id for each in sheds}
        return RoutingOutcome(placements, sheds)
