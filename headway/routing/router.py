"""The router: a state machine over requests and replicas, without I/O.

    submit ──▶ placed ──prefilled──▶ decoding ──complete──▶ ended
       │          ▲  ╲                  │
       ▼          │   ╲ failed(retry)   │ failed(retry)
      held ───────┘    ╲────▶ placed again, or held
       ╲──▶ shed

Each event takes the time and returns the placements and sheds that follow, of any requests: what frees room
places those that are held. Events of requests that are not known are ignored and counted. The same events
with the same generator give the same outcomes. `scheduler` chooses, `placing` writes down what was chosen,
`hold` is the queue; here is what follows from what.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf, nan

from headway.config.roles import Role
from headway.config.routing import RoutingSettings
from headway.routing.counters import Counters, Figures
from headway.routing.hold import Hold
from headway.routing.lazy_heap import LazyHeap
from headway.routing.learning import Learning, Sample
from headway.routing.offload import OffloadDecision, after_deadline, after_loss
from headway.routing.offloading import restored
from headway.routing.pipeline import Pipeline
from headway.routing.placing import Placing
from headway.routing.question import Knowledge, Refusal
from headway.routing.record import Phase, Record
from headway.routing.replica import Replica
from headway.routing.scheduler import Scheduler
from headway.routing.tracing import Traces
from headway.routing.types import (
    NOTHING,
    Outcome,
    Placement,
    Progress,
    ReplicaState,
    ReplicaUpdate,
    RequestSlo,
    RouteRequest,
    Running,
    Shed,
    ShedReason,
)
from predictors.latency import LatencyModel
from predictors.output_length import OutputLengths

TRIES = 2
"""Held requests that find no room after one event, at most, before the rest is left for the next."""

LEAST_GAPS = 32
"""Output tokens from which a TPOT says something of predictions: the mean of few gaps is mostly chance."""


class Router:
    """Routes the requests of one deployment. Made by `make_router`. `traces` are those of offload."""

    def __init__(
        self,
        settings: RoutingSettings,
        pipelines: Mapping[str, Pipeline],
        know: Knowledge,
        scheduler: Scheduler,
    ) -> None:
        self._settings, self._pipelines, self._know, self._scheduler = settings, pipelines, know, scheduler
        self._fleet, self._counters, self._deadlines = know.fleet, Counters(), LazyHeap[Record]()
        self._placing = Placing(know, scheduler, self._counters, self._deadlines)
        self._records: dict[str, Record] = {}
        self._hold, self._number = Hold(settings.queue), 0
        self._learning, self._lengths = Learning(), OutputLengths()
        self.traces = Traces(settings.offload)

    @property
    def queued(self) -> int:
        """Requests that are held."""
        return len(self._hold)

    @property
    def running(self) -> int:
        """Requests on replicas."""
        return len(self._records) - len(self._hold)

    @property
    def gpu_types(self) -> Mapping[str, int]:
        """How many replicas there are of each GPU type."""
        return Counter(replica.gpu_type for replica in self._fleet)

    @property
    def next_due_s(self) -> float:
        """When `expire` is due next; infinite if never."""
        first = self._deadlines.first()
        return min(self._hold.next_due_s, inf if first is None else first[0])

    def __contains__(self, request_id: str) -> bool:
        """Whether the request is here, held or on replicas."""
        return request_id in self._records

    def metrics(self) -> Mapping[str, Figures]:
        """Counters by name and labels (see Counters), gauges, and how predictions and transfers came out."""
        return {
            **self._counters.snapshot(),
            "queued": {(): float(self.queued)},
            "running": {(): float(self.running)},
            "prediction": self._learning.figures(),
            "transfer": self._know.handovers.figures(),
            "busy": self._fleet.busy(),
        }

    def use_model(self, model: LatencyModel) -> None:
        """Correct predictions by this model from now on."""
        self._know.latency.use(model)

    def use_slo(self, slo: RequestSlo) -> None:
        """Hold requests without an SLO of their own to this one from now on.

        Those that a profile judges by predictions keep the one with which they came.
        """
        self._know.slo = slo

    def take_samples(self) -> Sequence[Sample]:
        """Training samples since the last call, oldest first."""
        return self._learning.take()

    def submit(self, now_s: float, request: RouteRequest) -> Outcome:
        """A request came: it is placed, shed, or held (nothing is returned then)."""
        if request.request_id in self._records:
            return self._unknown("submit")
        record = self._recorded(request, self._expected_output(request))
        self._scheduler.arrived(now_s)
        return self._settle(now_s, record)

    def prefilled(self, now_s: float, request_id: str) -> Outcome:
        """Its prompt is computed."""
        record = self._records.get(request_id)
        if record is None or record.phase is not Phase.PREFILL:
            return self._unknown("prefilled")
        record.prefilled_s = now_s
        self._placing.prefilled(now_s, record)
        return self._drain(now_s)

    def first_token(self, now_s: float, request_id: str) -> Outcome:
        """Its first token left; its prompt is computed then, whoever forgot to say so."""
        record = self._records.get(request_id)
        if record is None or record.phase is Phase.QUEUED:
            return self._unknown("first_token")
        record.first_token_s, record.output_tokens = now_s, max(1, record.output_tokens)
        self._know.handovers.arrived(now_s, record)
        return self.prefilled(now_s, request_id) if record.phase is Phase.PREFILL else NOTHING

    def progress(self, now_s: float, progress: Sequence[Progress]) -> Outcome:
        """Output tokens so far."""
        for request_id, output_tokens in progress:
            record = self._records.get(request_id)
            if record is None or record.phase is Phase.QUEUED:
                self._unknown("progress")
            else:
                record.output_tokens = output_tokens
        return self._drain(now_s)

    def complete(self, now_s: float, request_id: str, output_tokens: int) -> Outcome:
        """It has all its tokens."""
        record = self._records.pop(request_id, None)
        if record is None:
            return self._unknown("complete")
        self._leave(record)
        self._counters.count("ended", "completed")
        self._learn(now_s, record, output_tokens)
        self.traces.ended(record, now_s)
        return self._drain(now_s)

    def failed(self, now_s: float, request_id: str, *, retry: bool) -> Outcome:
        """It ended without completing; `retry`: only this attempt did, and it goes elsewhere.

        An offloaded request whose P is GONE is computed by its D after all.
        """
        record = self._records.get(request_id)
        if record is None:
            return self._unknown("failed")
        if retry and record.phase is Phase.QUEUED:
            return NOTHING
        self._counters.count("ended", "retried" if retry else "failed")
        if not retry:
            del self._records[request_id]
            self._leave(record)
            self.traces.ended(record, None)
            return self._drain(now_s)
        if (decode := self._survivor(record)) is not None and record.offload is not None:
            return self._colocated(now_s, record, decode, after_loss(record.offload))
        self._leave(record)
        return _joined(self._settle(now_s, record), self._drain(now_s))

    def replica_changed(self, now_s: float, update: ReplicaUpdate) -> Outcome:
        """A replica came, went, or says how it is."""
        replica = self._fleet.get(update.replica)
        if update.state is ReplicaState.GONE:
            if replica is None:
                return self._unknown("replica_changed")
            self._fleet.remove(replica)
            self._know.prefixes.forget(replica.slot)
            return NOTHING
        if replica is None:
            cells = self._know.latency.cells(update.gpu_type)
            replica = self._fleet.add(update.replica, update.role, update.gpu_type, cells)
        elif update.gpu_type not in {"", replica.gpu_type}:
            self._fleet.set_type(replica, update.gpu_type, self._know.latency.cells(update.gpu_type))
        self._fleet.set_ready(replica, ready=update.state is ReplicaState.READY)
        if update.load is not None:
            self._fleet.report(now_s, replica, update.load)
        return self._drain(now_s)

    def expire(self, now_s: float) -> Outcome:
        """What is due: requests that waited as long as they may, late offloaded prompts, samples of use."""
        self._fleet.sample(now_s)
        placements: list[Placement] = []
        while (first := self._deadlines.first()) is not None and first[0] <= now_s:
            record = self._deadlines.item(first[1])
            self._deadlines.discard(first[1])
            decode = record.decode
            if decode is not None and decode.alive and record.offload is not None:
                decision = after_deadline(record.offload)
                placements += self._colocated(now_s, record, decode, decision).placements
        return _joined(Outcome(tuple(placements), ()), self._drain(now_s))

    def restore(self, now_s: float, running: Sequence[Running]) -> Outcome:
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
            record = self._recorded(each.request, expected or self._expected_output(each.request))
            choice = self._scheduler.chosen(now_s, record, prefill or decode, decode, restored(placement))
            self._placing.enter(now_s, record, choice)
            record.placement, record.attempt = placement, placement.attempt
            record.placed_s = each.request.arrival_s + placement.queued_s
            record.first_token_s, record.output_tokens = each.first_token_s, each.output_tokens
            if placement.deadline_s < inf and not each.prefilled:
                self._deadlines.push(placement.deadline_s, record.number, record)
            if each.prefilled:
                self._placing.prefilled(now_s, record)
        return self._drain(now_s)

    def _recorded(self, request: RouteRequest, expected_output: int) -> Record:
        """A new record of a request, which the profile and the SLO of its life belong to."""
        pipeline = self._pipelines[self._know.handler.profile(request, self._settings.profile)]
        slo = request.slo
        if pipeline.judges and not slo.given:
            slo = self._know.slo
        record = Record(
            request=request, number=self._number, expected_output=expected_output, slo=slo, pipeline=pipeline
        )
        self._number += 1
        self._records[request.request_id] = record
        return record

    def _expected_output(self, request: RouteRequest) -> int:
        return max(1, round(self._lengths.predict(request.input_tokens, request.max_tokens).mean))

    def _settle(self, now_s: float, record: Record) -> Outcome:
        """Place, hold or shed a request that is nowhere."""
        placement = self._try(now_s, record)
        if isinstance(placement, Placement):
            return Outcome((placement,), ())
        if placement is not None and placement.hopeful_until_s < now_s:
            return self._shed(record, placement.reason, placement.explain(), placement.retry_after_s)
        if placement is not None and placement.reason is ShedReason.NO_HEADROOM and not self._holds(record):
            return self._shed(record, placement.reason, placement.explain(), placement.retry_after_s)
        if self._hold.full:
            return self._shed(record, ShedReason.QUEUE_FULL, f"{self.queued} requests wait")
        self._hold.add(now_s, record, placement, self._know)
        return NOTHING

    def _holds(self, record: Record) -> bool:
        return self._settings.slo.hold or not record.pipeline.judges

    def _drain(self, now_s: float) -> Outcome:
        """Shed those held whose time is over, and place those that can be, the most urgent first."""
        if not self._hold:
            return NOTHING
        sheds: list[Shed] = []
        for record, reason, detail in self._hold.due(now_s):
            sheds += self._shed(self._records[record], reason, detail).sheds
        placements, tries = [], TRIES
        for request_id in self._hold.ordered(now_s):
            placement = self._try(now_s, self._records[request_id])
            if isinstance(placement, Placement):
                self._hold.remove(request_id)
                placements.append(placement)
            elif (tries := tries - 1) == 0 or placement is None:
                break
        return Outcome(tuple(placements), tuple(sheds))

    def _try(self, now_s: float, record: Record) -> Placement | Refusal | None:
        """Place a request; or why not, None where a role has no ready replica."""
        if not self._fleet.has(self._know.roles):
            return None
        choice = self._scheduler.choose(now_s, record)
        if isinstance(choice, Refusal):
            return choice
        if choice.pipeline is not record.pipeline:
            self._counters.count("fallbacks", "no_prediction")
        return self._placing.place(now_s, record, choice)

    def _colocated(self, now_s: float, record: Record, decode: Replica, decision: OffloadDecision) -> Outcome:
        """Give an offloaded prompt to D after all."""
        self._leave(record)
        choice = self._scheduler.chosen(now_s, record, decode, decode, decision)
        return Outcome((self._placing.place(now_s, record, choice),), ())

    def _survivor(self, record: Record) -> Replica | None:
        """D of an offloaded request whose prompt was at a P that is GONE."""
        prefill, decode = record.prefill, record.decode
        lost = record.phase is Phase.PREFILL and prefill is not None and not prefill.alive
        if lost and decode is not None and decode.alive and decode.role is Role.MIXED:
            return decode
        return None

    def _leave(self, record: Record) -> None:
        """Take a request from wherever it is."""
        if record.phase is Phase.QUEUED:
            self._hold.remove(record.request.request_id)
        else:
            self._placing.released(record)

    def _learn(self, now_s: float, record: Record, output_tokens: int) -> None:
        """What a completed request teaches."""
        self._lengths.observe(record.request.input_tokens, output_tokens)
        first_s = record.first_token_s
        if first_s < 0.0:
            return
        self._know.latency.stayed(now_s - first_s)
        if record.tracked:
            tpot_s = (now_s - first_s) / (output_tokens - 1) if output_tokens > 1 else nan
            ttft_s = first_s - record.placed_s
            self._learning.ended(record, ttft_s, tpot_s)
            enough = output_tokens >= LEAST_GAPS
            self._know.latency.ended(record.ttft_s, ttft_s, record.tpot_s, tpot_s if enough else nan)

    def _shed(self, record: Record, reason: ShedReason, detail: str, retry_after_s: float = 1.0) -> Outcome:
        del self._records[record.request.request_id]
        shed = Shed(
            request_id=record.request.request_id, reason=reason, detail=detail, retry_after_s=retry_after_s
        )
        self._counters.shed(shed)
        return Outcome((), (shed,))

    def _unknown(self, event: str) -> Outcome:
        self._counters.count("unknown_events", event)
        return NOTHING


def _joined(first: Outcome, second: Outcome) -> Outcome:
    return Outcome(first.placements + second.placements, first.sheds + second.sheds)
