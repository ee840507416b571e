"""The router: a state machine over requests and replicas, without I/O.

    submit ──▶ placed ──prefilled──▶ decoding ──complete──▶ ended
       │          ▲  ╲                  │
       ▼          │   ╲ failed(retry)   │ failed(retry)
      held ───────┘    ╲────▶ placed again, or held
       ╲──▶ shed

Each event takes the time and returns the placements and sheds that follow, of any requests: what frees room
places those that are held. Events of requests that are not known are ignored and counted. The same events
with the same generator give the same outcomes. Here stands what each event changes; `dispatch` says which
requests it sets going, `scheduler` chooses, `placing` writes down what was chosen.

An event that raises RequestFault is done, but for a request that it does not name.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf, nan

from headway.config import Role
from headway.config.routing import RoutingSettings
from headway.routing.decide.context import RoutingState
from headway.routing.decide.offload import Traces, restored
from headway.routing.decide.scheduler import Pipeline, Scheduler
from headway.routing.dispatch.claims import guard_kept
from headway.routing.dispatch.dispatch import Dispatcher
from headway.routing.dispatch.placing import Counters
from headway.routing.fleet.gpu_profiles import GpuProfile, surfaces_in
from headway.routing.fleet.records import Record, Replica, RequestPhase, Sample
from headway.routing.offload import AFTER_LOSS
from headway.routing.predict.learning import Learning
from headway.routing.types import (
    NOTHING,
    Figures,
    OutputProgress,
    ReplicaId,
    ReplicaState,
    ReplicaUpdate,
    RequestSlo,
    RouteRequest,
    RoutingOutcome,
    Running,
)
from predictors.latency import LatencyModel


class Router:
    """Routes the requests of one deployment. Made by `make_router`. `traces` are those of offload.

    Requests that ask for prediction-based scheduling go by `prediction_profile`, others by `routing.profile`.
    """

    def __init__(
        self,
        settings: RoutingSettings,
        pipelines: Mapping[str, Pipeline],
        prediction_profile: str,
        state: RoutingState,
        scheduler: Scheduler,
    ) -> None:
        self._settings, self._pipelines, self._prediction_profile = settings, pipelines, prediction_profile
        self._state, self._scheduler = state, scheduler
        self._fleet, self._counters = state.fleet, Counters()
        self._learning = Learning(state.latency, state.fleet)
        self._records: dict[str, Record] = {}
        self._dispatch = Dispatcher(settings, state, scheduler, self._counters, self._records)
        self._placing, self._number = self._dispatch.placing, 0
        self._unread: set[ReplicaId] = set()
        self.traces = Traces(settings.offload)

    @property
    def queued(self) -> int:
        """Requests that are held."""
        return self._dispatch.held

    @property
    def running(self) -> int:
        """Requests on replicas."""
        return len(self._records) - self.queued

    @property
    def gpu_types(self) -> Mapping[str, int]:
        """The number of replicas of each GPU type."""
        return Counter(replica.gpu_type for replica in self._fleet)

    @property
    def next_due_s(self) -> float:
        """The time when `expire` is due next; infinite if never."""
        return self._dispatch.next_due_s

    def __contains__(self, request_id: str) -> bool:
        """True if the request is here, held or on replicas."""
        return request_id in self._records

    def metrics(self) -> Mapping[str, Figures]:
        """Counters by name and labels (see Counters), gauges, and how predictions and transfers came out."""
        return {
            **self._counters.snapshot(),
            "queued": {(): float(self.queued)},
            "running": {(): float(self.running)},
            "prediction": self._learning.figures(),
            "transfer": self._state.handovers.figures(),
            "busy_s": self._fleet.busy_s(),
            **self._state.adapters.figures(),
        }

    def use_model(self, model: LatencyModel, age_s: float = 0.0) -> None:
        """Correct predictions by this model from now on.

        Its newest sample is `age_s` old: what is old counts for less, until outcomes come.
        """
        self._state.latency.use(model, age_s)
        self._dispatch.freed.look_again()

    @property
    def profiles(self) -> Mapping[str, GpuProfile]:
        """The profiles in use, by GPU type."""
        return self._state.profiles

    def use_profiles(self, profiles: Mapping[str, GpuProfile]) -> None:
        """Go by these profiles from now on: predictions, plugins and offload of all GPU types.

        Requests on replicas keep what was predicted of them; those that are held are judged anew.
        """
        state = self._state
        state.latency.use_profiles(surfaces_in(profiles))
        state.profiles = profiles
        self._fleet.set_types(state.latency.cells)
        for record in self._records.values():
            if record.phase is RequestPhase.QUEUED:
                record.alone_s = None
        self._dispatch.freed.look_again()

    @property
    def corrections(self) -> Mapping[str, float]:
        """Factors of predicted times that were learnt of the engines' speed, by name.

        `ttft`, `tpot` stretch predictions for headroom, `ttft/L20` those at the GPU type L20; `transfer`
        multiplies the nominal time of moving KV.
        """
        factors = {name: each.factor for name, each in self._state.latency.safety_factors().items()}
        return {**factors, "transfer": self._state.handovers.factor}

    def use_corrections(self, corrections: Mapping[str, float]) -> None:
        """Go on from `corrections` of a former router; those that are missing, or no factors, stay."""
        latency, fleet = self._state.latency, self._fleet
        latency.start_from(corrections)
        for replica in fleet:
            replica.safety = None
        fleet.set_types(latency.cells)
        self._state.handovers.start_from(corrections.get("transfer", nan))

    def use_slo(self, slo: RequestSlo) -> None:
        """Hold requests without an SLO of their own to this one from now on.

        Those that a profile judges by predictions keep the one with which they came. What is held and may
        be placed now is tried at the next event.
        """
        self._state.slo = slo
        self._dispatch.freed.look_again()

    def take_samples(self) -> Sequence[Sample]:
        """Training samples since the last call, oldest first."""
        return self._learning.take()

    def take_unread(self) -> Sequence[ReplicaId]:
        """Replicas whose news of cached blocks was of no use without all of them, since the last call."""
        taken = sorted(self._unread)
        self._unread.clear()
        return taken

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """For events that come together: those held are not tried after each, but by `caught_up`."""
        self._dispatch.gathering = True
        try:
            yield
        finally:
            self._dispatch.gathering = False

    def caught_up(self, now_s: float) -> RoutingOutcome:
        """Try those held, where an event within `gathering` would have."""
        return self._dispatch.drain(now_s) if self._dispatch.due else NOTHING

    def submit(self, now_s: float, request: RouteRequest) -> RoutingOutcome:
        """A request came: it is placed, shed, or held (nothing is returned then)."""
        if request.request_id in self._records:
            return self._unknown("submit")
        self._state.reports.fade(now_s)
        record = self._recorded(request, self._learning.expected_output(request))
        self._scheduler.arrived(now_s)
        self._dispatch.settle(now_s, record)
        return self._dispatch.outcome()

    def prefilled(self, now_s: float, request_id: str) -> RoutingOutcome:
        """Its prompt is computed."""
        record = self._records.get(request_id)
        if record is None or record.phase is not RequestPhase.PREFILL:
            return self._unknown("prefilled")
        record.prefilled_s = now_s
        self._state.latency.prompted(now_s - record.placed_s)
        self._dispatch.freed.add(record.prefill)
        self._placing.prefilled(now_s, record)
        return self._dispatch.drain(now_s)

    def first_token(self, now_s: float, request_id: str) -> RoutingOutcome:
        """Its first token left; its prompt is computed then, also if no event said so."""
        record = self._records.get(request_id)
        if record is None or record.phase is RequestPhase.QUEUED:
            return self._unknown("first_token")
        record.first_token_s, record.output_tokens = now_s, max(1, record.output_tokens)
        self._state.handovers.arrived(now_s, record)
        if now_s - record.request.arrival_s > record.slo.ttft_s and record.guard_s < inf:
            self._placing.binds_no_more(record)
            self._dispatch.freed.add(record.decode)
        return self.prefilled(now_s, request_id) if record.phase is RequestPhase.PREFILL else NOTHING

    def progress(self, now_s: float, progress: Sequence[OutputProgress]) -> RoutingOutcome:
        """Output tokens so far."""
        for request_id, output_tokens in progress:
            record = self._records.get(request_id)
            if record is None or record.phase is RequestPhase.QUEUED:
                self._unknown("progress")
            elif output_tokens > record.output_tokens:
                expected = record.expected_output
                if output_tokens > expected:
                    expected = self._learning.expected_after(record.request, output_tokens)
                self._placing.progressed(record, output_tokens, expected)
        return self._dispatch.drain(now_s)

    def complete(self, now_s: float, request_id: str, output_tokens: int) -> RoutingOutcome:
        """It has all its tokens."""
        record = self._records.pop(request_id, None)
        if record is None:
            return self._unknown("complete")
        self._dispatch.ended(record, output_tokens)
        self._counters.count("ended", "completed")
        self._learning.completed(now_s, record, output_tokens)
        if _kept(record, now_s, output_tokens):
            guard_kept(record.decode, record)
        self._dispatch.leave(now_s, record)
        self.traces.ended(record, now_s)
        return self._dispatch.drain(now_s)

    def failed(self, now_s: float, request_id: str, *, retry: bool) -> RoutingOutcome:
        """It ended without completing; `retry`: only this attempt did, and it goes elsewhere.

        An offloaded request whose P is GONE is computed by its D after all.
        """
        record = self._records.get(request_id)
        if record is None:
            return self._unknown("failed")
        if retry and record.phase is RequestPhase.QUEUED:
            # Its attempt has been taken back already, as when its replica went: it waits for the next.
            return NOTHING
        self._counters.count("ended", "retried" if retry else "failed")
        if not retry:
            del self._records[request_id]
            self._learning.broken_off(now_s, record)
            self._dispatch.leave(now_s, record)
            self._dispatch.ended(record, record.output_tokens)
            self.traces.ended(record, None)
            return self._dispatch.drain(now_s)
        if (decode := self._survivor(record)) is not None and record.offload is not None:
            self._dispatch.colocate(now_s, record, decode, AFTER_LOSS)
            return self._dispatch.outcome()
        self._dispatch.take_back(now_s, record)
        self._dispatch.settle(now_s, record)
        return self._dispatch.drain(now_s)

    def replica_changed(self, now_s: float, update: ReplicaUpdate) -> RoutingOutcome:
        """A replica came, went, or says how it is."""
        replica = self._fleet.get(update.replica)
        if update.state is ReplicaState.GONE:
            if replica is None:
                return self._unknown("replica_changed")
            self._state.adapters.forget(replica.slot)
            self._state.prefixes.forget(replica.slot)
            self._state.reports.forget(replica)
            self._fleet.remove(replica)
            return NOTHING
        if replica is None:
            cells = self._state.latency.cells(update.gpu_type)
            replica = self._fleet.add(update.replica, update.role, update.gpu_type, cells)
        elif update.gpu_type not in {"", replica.gpu_type}:
            self._fleet.set_type(replica, update.gpu_type, self._state.latency.cells(update.gpu_type))
        self._fleet.set_ready(replica, ready=update.state is ReplicaState.READY)
        if update.load is not None:
            self._state.reports.take(now_s, replica, update.load)
            if update.load.adapters is not None:
                told = update.load.adapters, update.load.adapter_room
                self._state.adapters.report(now_s, replica.slot, *told)
            self._state.prefixes.heard(now_s, replica.slot, update.blocks_at)
        if update.blocks is not None and not self._state.prefixes.report(replica.slot, update.blocks):
            self._unread.add(update.replica)
        self._dispatch.freed.add(replica)
        return self._dispatch.drain(now_s)

    def expire(self, now_s: float) -> RoutingOutcome:
        """Do what is due: requests that waited as long as they may, late offloaded prompts, and prefixes that
        engines should have confirmed."""
        self._state.reports.fade(now_s)
        self._state.prefixes.settle(now_s)
        return self._dispatch.expire(now_s)

    def restore(self, now_s: float, running: Sequence[Running]) -> RoutingOutcome:
        """Take up requests that are on replicas already; first tell of the replicas.

        Those whose replicas are not known are ignored and counted; drivers report them as failed elsewhere.
        """
        for each in running:
            placement = each.placement
            prefill, decode = map(self._fleet.get, (placement.prefill_replica, placement.decode_replica))
            if decode is None or each.request.request_id in self._records:
                self._unknown("restore")
                continue
            expected = each.expected_output_tokens
            record = self._recorded(each.request, expected or self._learning.expected_output(each.request))
            choice = self._scheduler.chosen(now_s, record, prefill or decode, decode, restored(placement))
            self._placing.resume(now_s, record, choice, each)
        return self._dispatch.drain(now_s)

    def _recorded(self, request: RouteRequest, expected_output: int) -> Record:
        """A new record of a request, which the profile and the SLO of its life belong to."""
        if request.input_tokens < 1:
            # Engines refuse an empty prompt. Until then it counts as a token, by which shares divide.
            request = replace(request, input_tokens=1)
        default, asked = self._settings.live_profile, self._prediction_profile
        pipeline = self._pipelines[asked if request.prediction_based else default]
        judged = pipeline.uses_predictions
        record = Record(
            request=request,
            number=self._number,
            expected_output=expected_output,
            slo=self._state.slo if judged and not request.slo.given else request.slo,
            profile=pipeline.name,
            judged=judged,
        )
        self._number += 1
        self._records[request.request_id] = record
        return record

    def _survivor(self, record: Record) -> Replica | None:
        """D of an offloaded request whose prompt was at a P that is GONE."""
        prefill, decode = record.prefill, record.decode
        lost = record.phase is RequestPhase.PREFILL and prefill is not None and not prefill.alive
        if lost and decode is not None and decode.alive and decode.role is Role.MIXED:
            return decode
        return None

    def _unknown(self, event: str) -> RoutingOutcome:
        self._counters.count("unknown_events", event)
        return NOTHING


def _kept(record: Record, now_s: float, output_tokens: int) -> bool:
    """True if a request that ends now has kept its SLO."""
    first_s, slo = record.first_token_s, record.slo
    if first_s < 0.0 or first_s - record.request.arrival_s > slo.ttft_s:
        return False
    return output_tokens < 2 or (now_s - first_s) / (output_tokens - 1) <= slo.tpot_s
