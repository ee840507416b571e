"""A router in the simulator: the kernel runs until something happens that concerns the router.

    arrival        → submit             → place, hold or shed
    notices        → prefilled, first_token, complete, failed, replica_changed
    reports        → replica_changed with loads, progress
    next_due_s     → expire
    Outcome        → orders, which the kernel obeys first when it goes on, at the same instant

The router hears of each event at its time: `now` never goes back, and is the kernel's. Of engines' loads and
of tokens under way it hears as often as live (`observing.EngineReports`), or not at all; then it learns of
load from its own placements. The pool that a request starts in counts those held as waiting.

Of a request it is told what a gateway would know, and no more. The true output length stays with the engine;
`max_tokens` is what the model's limit leaves beside the prompt. Prefix blocks are those of the trace, told
apart by superposed copy. Traces name no conversations, so the session is derived: see `session_of`.

The trainer does what the live LatencyTrainer does and takes no virtual time: a model trained at t is used
from t on. It holds up the run, so it also waits until the window has turned over by `RENEWED`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan

from headway.config.routing import PredictionSettings
from headway.engine.kernel import layout
from headway.engine.kernel.layout import (
    FIRST_TOKEN,
    LOST,
    NONE,
    PREFILLED,
    REPLICA_CHANGED,
    Exit,
    KernelState,
)
from headway.engine.kernel.prefill import COPY_SHIFT
from headway.engine.kernel.state import grow_orders
from headway.planning.types import Role
from headway.routing import (
    NOTHING,
    ReplicaState,
    ReplicaUpdate,
    RequestSlo,
    Router,
    RouteRequest,
    RoutingOutcome,
)
from headway.routing.offload import OffloadTrace
from headway.routing.predict.learning import Training
from headway.simulation import kernel
from headway.simulation.fleet import ROLES, Fleet
from headway.simulation.observing import EngineReports
from headway.simulation.scenario import RequestClass
from interp import Profile

LEAST_STEP_S = 1e-3
NOTICES, NEED_PLACEMENT = int(Exit.NOTICES), int(Exit.NEED_PLACEMENT)
STATES = {layout.SERVING: ReplicaState.READY, layout.DRAINING: ReplicaState.DRAINING}
PULL_S = 2.0
"""Seconds between two looks for samples."""

RENEWED = 0.5
"""New samples for another training, as a share of those that the window holds."""


def session_of(blocks: Sequence[int], shared: int = 1) -> str | None:
    """A name for the conversation that a prompt continues; None where the blocks do not tell.

    A trace's first `shared` blocks are what its applications put before every prompt. The next is the first
    that tells conversations apart, and since a block stands for all before it as well, later turns keep it.
    """
    return f"{blocks[shared]:x}" if len(blocks) > shared else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """Facts common to all requests of a run. `most_tokens`: of one request, prompt and output.

    `shared_blocks`: see `session_of`. They may all be turned away at once (`spills`).
    """

    classes: Sequence[RequestClass]
    most_tokens: int
    block_tokens: int
    shared_blocks: int = 1
    spills: bool = False


class RouteRequests:
    """Makes route requests of slots of a state; valid as long as the state's arrays are."""

    def __init__(self, state: KernelState, context: RequestContext) -> None:
        self._context, self._requests, self._blocks = context, state.requests, state.prefix.blocks
        slos = [each.slo for each in context.classes]
        self._slos = [RequestSlo(ttft_s=slo.ttft_s, tpot_s=slo.itl_s) for slo in slos]
        self._fields = [
            self._requests[name]
            for name in (
                "number",
                "arrival_s",
                "input_tokens",
                "block_start",
                "block_count",
                "copy",
                "slo_class",
            )
        ]

    def of(self, request: int) -> RouteRequest:
        """The request in this slot."""
        number, arrival_s, input_tokens, start, count, copy, place = [
            column.item(request) for column in self._fields
        ]
        context, of_class = self._context, self._context.classes[place]
        blocks: tuple[int, ...] = ()
        if count:
            blocks = tuple((self._blocks[start : start + count] + (copy << COPY_SHIFT)).tolist())
        return RouteRequest(
            request_id=str(number),
            arrival_s=arrival_s,
            input_tokens=input_tokens,
            max_tokens=max(1, context.most_tokens - input_tokens),
            slo=self._slos[place],
            critical=of_class.critical,
            spills=context.spills,
            tenant=of_class.tenant,
            session=session_of(blocks, context.shared_blocks),
            blocks=blocks,
            block_tokens=context.block_tokens,
        )


class SimulatedTrainer:
    """Keeps up the model of one router, as the live trainer does."""

    def __init__(self, prediction: PredictionSettings) -> None:
        self._interval_s, self._most = prediction.retrain_interval_s, prediction.window_samples
        self._training = Training(prediction)
        self.trainings = self._seen = self._fresh = 0
        self._train_s = self._interval_s
        self._version: tuple[int, ...] = ()
        self.next_due_s = PULL_S

    def train_model(self, now_s: float, router: Router) -> None:
        """Take in what is new, train if that is much, and let the router use what has changed."""
        self.next_due_s = now_s + PULL_S
        samples = router.take_samples()
        self._training.add(samples, now_s)
        self._fresh += len(samples)
        if now_s >= self._train_s:
            self._train_s = now_s + self._interval_s
            if self._fresh > RENEWED * min(self._seen, self._most):
                self._seen, self._fresh = self._seen + self._fresh, 0
                self._training.train()
                self.trainings += 1
        if (model := self._training.model) is not None and self._training.version != self._version:
            self._version = self._training.version
            router.use_model(model)


class RouterDriver:
    """Drives the kernel of one run by a router."""

    def __init__(
        self,
        fleet: Fleet,
        router: Router,
        context: RequestContext,
        trainer: SimulatedTrainer | None,
        gpu_type: str = "",
        *,
        traces: Callable[[Sequence[OffloadTrace]], None] | None = None,
        reports: EngineReports | None = None,
    ) -> None:
        self._reports = reports
        self.router, self._fleet, self._context, self._trainer = router, fleet, context, trainer
        self._gpu_type, self._traces = gpu_type, traces
        self._arrays = fleet.arrays
        self._route_requests = RouteRequests(self._arrays, context)
        self._slots: dict[str, int] = {}
        self._replicas: dict[str, tuple[int, int]] = {}
        self._roles: dict[int, Role] = {}
        self._gone: list[str] = []
        self._woken_s = -inf
        clock = fleet.arrays.clock
        self._now, self._asked = clock["now_s"], clock["asked_request"]
        self._notices, self._orders = clock["notices"], clock["orders"]
        self._first_pool = layout.PREFILL if fleet.arrays.settings[0]["disaggregated"] else layout.MIXED

    def go_by(self, profile: Profile) -> None:
        """Let the router predict by other surfaces of the deployment's own engines, as live ones do."""
        self.router.use_profiles({**self.router.profiles, "": profile})

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
        self._fleet.arrays.clock["parked"][0, self._first_pool] = self.router.queued

    def _due_s(self) -> float:
        """When to wake next; a router that is still due after it was woken has to wait a little."""
        due_s = self.router.next_due_s
        if self._trainer is not None:
            due_s = min(due_s, self._trainer.next_due_s)
        if self._reports is not None:
            due_s = min(due_s, self._reports.due_s)
        # Without a step a router that is due at once, always, would stop the clock.
        if due_s <= self._woken_s:
            due_s = self._woken_s + LEAST_STEP_S
        now_s: float = self._now.item(0)
        return max(due_s, now_s)

    def _wake(self) -> None:
        now_s = self._woken_s = self._now.item(0)
        if self._trainer is not None and now_s >= self._trainer.next_due_s:
            self._trainer.train_model(now_s, self.router)
        if self._reports is not None and now_s >= self._reports.due_s:
            self._report(now_s, self._reports)
        self._order(self.router.expire(now_s))

    def _report(self, now_s: float, reports: EngineReports) -> None:
        """Let the router hear what engines and gateways tell; those held are tried once, after all of it."""
        updates, progress = reports.look(self._replicas, self._roles)
        with self.router.gathering():
            for update in updates:
                self._order(self.router.replica_changed(now_s, update))
            if progress:
                self._order(self.router.progress(now_s, progress))

    def _submit(self) -> None:
        state = self._fleet.arrays
        if state is not self._arrays:
            self._arrays, self._route_requests = state, RouteRequests(state, self._context)
        slot = self._asked.item(0)
        request = self._route_requests.of(slot)
        self._slots[request.request_id] = slot
        self._order(self.router.submit(self._now.item(0), request))

    def _tell(self) -> None:
        """Pass the notices on, in their order."""
        now_s = self._now.item(0)
        notices = self._fleet.arrays.notices[: self._notices.item(0)].tolist()
        self._notices[0] = 0
        for notice in notices:
            self._order(self._heard(now_s, *notice))
        for name in self._gone:
            del self._replicas[name]
        self._gone.clear()
        if self._traces is not None:
            self._traces(self.router.traces.take())

    def _heard(self, now_s: float, kind: int, slot: int, number: int, value: int) -> RoutingOutcome:
        """The router's answer to one notice (`layout.NOTICE`)."""
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
            self._roles[serial] = ROLES[int(self._fleet.arrays.replicas["role"][slot])]
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
        state = self._fleet.arrays
        count = self._orders.item(0)
        if count == len(state.orders):
            state = self._fleet.arrays = grow_orders(state)
        state.orders[count] = order
        self._orders[0] = count + 1


def named(metrics: Mapping[str, Mapping[tuple[str, ...], float]]) -> Mapping[str, Mapping[str, float | None]]:
    """A router's metrics as JSON can hold them: labels joined by slashes, none as `all`; NaN as None."""
    return {
        name: {
            "/".join(filter(None, labels)) or "all": None if isnan(value) else value
            for labels, value in sorted(values.items())
        }
        for name, values in metrics.items()
    }
