"""A router in the simulator: the kernel runs until something happens that the router must know.

    arrival        → submit             → place, hold or shed
    notices        → prefilled, first_token, complete, failed, replica_changed
    next_due_s     → expire
    Outcome        → orders, which the kernel obeys first when it goes on, at the same instant

The router hears of each event at its time: `now` never goes back, and is the kernel's. What the live system
knows only later or not at all (engine-reported load, tokens under way) the router is not told either; it
learns of load from its own placements. The pool that a request starts in counts those held as waiting.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan

import numpy as np

from headway.config.routing import PredictionSettings
from headway.planning.types import Role
from headway.routing import NOTHING, ReplicaState, ReplicaUpdate, Router, RoutingOutcome
from headway.routing.offload import OffloadTrace
from headway.simulation import kernel, layout
from headway.simulation.allocate import grow_orders
from headway.simulation.facts import Facts, Told
from headway.simulation.fleet import ROLES, Fleet
from headway.simulation.layout import FIRST_TOKEN, LOST, NONE, PREFILLED, REPLICA_CHANGED, Exit
from headway.simulation.learner import Learner

LEAST_STEP_S = 1e-3
NOTICES, NEED_PLACEMENT = int(Exit.NOTICES), int(Exit.NEED_PLACEMENT)
STATES = {layout.SERVING: ReplicaState.READY, layout.DRAINING: ReplicaState.DRAINING}


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """A scenario's router: its profile's name, and how to make it from the run's random generator.

    `most_tokens` bounds prompt and output of one request as routers know it; None: the KV capacity. `learn`
    says how its latency model is trained meanwhile; None: not at all. All replicas are of `gpu_type`.
    """

    name: str
    make: Callable[[np.random.Generator], Router]
    most_tokens: int | None = None
    learn: PredictionSettings | None = None
    gpu_type: str = ""


class Conductor:
    """Drives the kernel of one run by a router."""

    def __init__(
        self,
        fleet: Fleet,
        router: Router,
        told: Told,
        learner: Learner | None,
        gpu_type: str = "",
        *,
        traces: Callable[[Sequence[OffloadTrace]], None] | None = None,
    ) -> None:
        self.router, self._fleet, self._told, self._learner = router, fleet, told, learner
        self._gpu_type, self._traces = gpu_type, traces
        self._world = fleet.world
        self._facts = Facts(self._world, told)
        self._slots: dict[str, int] = {}
        self._replicas: dict[str, tuple[int, int]] = {}
        self._roles: dict[int, Role] = {}
        self._gone: list[str] = []
        self._woken_s = -inf
        clock = fleet.world.clock
        self._now, self._asked = clock["now_s"], clock["asked_request"]
        self._notices, self._orders = clock["notices"], clock["orders"]
        self._first_pool = layout.PREFILL if fleet.world.settings[0]["disaggregated"] else layout.MIXED

    def advance(self, stop_s: float) -> Exit:
        """Run to `stop_s`, or until there is something for others than the router to do."""
        while True:
            due_s = self._due_s()
            code = kernel.run(self._fleet.handle, min(stop_s, due_s))
            if code == NOTICES:
                self._tell()
            elif code == NEED_PLACEMENT:
                self._submit()
            elif code == Exit.REACHED and due_s <= stop_s:
                self._wake()
                if due_s == stop_s:
                    return Exit.REACHED
            else:
                return Exit(code)

    def count_held(self) -> None:
        """Let the requests that the router holds be seen as waiting for the first pool."""
        self._fleet.world.clock["parked"][0, self._first_pool] = self.router.queued

    def _due_s(self) -> float:
        """When to wake next; a router that is still due after it was woken has to wait a little."""
        due_s = self.router.next_due_s
        if self._learner is not None:
            due_s = min(due_s, self._learner.next_due_s)
        if due_s <= self._woken_s:
            due_s = self._woken_s + LEAST_STEP_S
        now_s: float = self._now.item(0)
        return max(due_s, now_s)

    def _wake(self) -> None:
        now_s = self._woken_s = self._now.item(0)
        if self._learner is not None and now_s >= self._learner.next_due_s:
            self._learner.learn(now_s, self.router)
        self._order(self.router.expire(now_s))

    def _submit(self) -> None:
        world = self._fleet.world
        if world is not self._world:
            self._world, self._facts = world, Facts(world, self._told)
        slot = self._asked.item(0)
        request = self._facts.of(slot)
        self._slots[request.request_id] = slot
        self._order(self.router.submit(self._now.item(0), request))

    def _tell(self) -> None:
        """Pass the notices on, in their order."""
        now_s = self._now.item(0)
        notices = self._fleet.world.notices[: self._notices.item(0)].tolist()
        self._notices[0] = 0
        for notice in notices:
            self._order(self._heard(now_s, *notice))
        for name in self._gone:
            del self._replicas[name]
        self._gone.clear()
        if self._traces is not None:
            self._traces(self.router.traces.take())

    def _heard(self, now_s: float, kind: int, slot: int, number: int, value: int) -> RoutingOutcome:
        """What follows from one notice (`layout.NOTICE`)."""
        router, request_id = self.router, str(number)
        if kind == FIRST_TOKEN:
            return router.first_token(now_s, request_id)
        if kind == PREFILLED:
            return router.prefilled(now_s, request_id)
        if kind == LOST:
            return router.failed(now_s, request_id, retry=True)
        if kind == REPLICA_CHANGED:
            return self._replica_changed(now_s, slot, number, value)
        return self._ended(now_s, request_id, value)

    def _ended(self, now_s: float, request_id: str, output_tokens: int) -> RoutingOutcome:
        if self._slots.pop(request_id, None) is None:
            return NOTHING  # it never fits, which no router was asked about
        if output_tokens == NONE:
            return self.router.failed(now_s, request_id, retry=False)
        return self.router.complete(now_s, request_id, output_tokens)

    def _replica_changed(self, now_s: float, slot: int, serial: int, code: int) -> RoutingOutcome:
        state = STATES.get(code, ReplicaState.GONE)
        if state is ReplicaState.READY:
            self._roles[serial] = ROLES[int(self._fleet.world.replicas["role"][slot])]
        role = self._roles[serial]
        name = f"{role}-{serial}"
        self._replicas[name] = (slot, serial)
        if state is ReplicaState.GONE:
            del self._roles[serial]
            self._gone.append(name)
        update = ReplicaUpdate(replica=name, role=role, state=state, gpu_type=self._gpu_type)
        return self.router.replica_changed(now_s, update)

    def _order(self, outcome: RoutingOutcome) -> None:
        """Write down what the kernel shall do; the router's word on requests that have ended is void."""
        for placement in outcome.placements:
            slot = self._slots.get(placement.request_id)
            if slot is not None:
                prefill = self._replicas[placement.prefill_replica]
                decode = self._replicas[placement.decode_replica]
                self._write((int(placement.request_id), slot, *prefill, *decode))
        for shed in outcome.sheds:
            slot = self._slots.pop(shed.request_id, None)
            if slot is not None:
                self._write((int(shed.request_id), slot, NONE, NONE, NONE, NONE))

    def _write(self, order: tuple[int, ...]) -> None:
        world = self._fleet.world
        count = self._orders.item(0)
        if count == len(world.orders):
            world = self._fleet.world = grow_orders(world)
        world.orders[count] = order
        self._orders[0] = count + 1


def named(
    metrics: Mapping[str, Mapping[tuple[str, ...], float]],
) -> Mapping[str, Mapping[str, float | None]]:
    """A router's metrics as JSON can hold them: labels joined by slashes, none as `all`; NaN as None."""
    return {
        name: {
            "/".join(filter(None, labels)) or "all": None if isnan(value) else value
            for labels, value in sorted(values.items())
        }
        for name, values in metrics.items()
    }
