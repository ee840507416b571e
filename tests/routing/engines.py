"""Engines for tests of a whole router: as fast as its profile says, times a slowness that the test chooses.

A placed request has its first token, and its others, after what the profile said when it was placed, times
`slowness(now_s, replica)`. Nothing is drawn by chance: the same requests give the same outcomes. A model is
trained as live: every INTERVAL_S, from whatever is new.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Set
from typing import Any

import numpy as np

from headway.config.routing import PredictionSettings
from headway.engine import EngineRules
from headway.engine.live import LiveEngine
from headway.routing import RequestSlo, RouteRequest, RoutingOutcome
from headway.routing.predict.learning import Training
from interp import Profile
from tests.routing.routers import SeenRouter, request

Slowness = Callable[[float, str], float]
INTERVAL_S = 10.0
LEAST_S = 1e-3


class Engines:
    """The engines of one router, and what became of each request: when it came, and who kept its SLO."""

    def __init__(self, made: SeenRouter, slowness: Slowness, *, learn: bool = True) -> None:
        self.made, self.slowness = made, slowness
        self.training, self.train_s = Training(PredictionSettings()), INTERVAL_S if learn else np.inf
        self.arrived: dict[str, float] = {}
        self.requests: dict[str, RouteRequest] = {}
        self.kept: set[str] = set()
        self.shed: set[str] = set()
        self.placed: dict[str, str] = {}
        self.placed_s: dict[str, float] = {}
        self._events: list[tuple[float, int, str, Any]] = []
        self._pushed = 0

    def run(self, requests: Iterable[RouteRequest]) -> None:
        """Until the last request has ended."""
        for each in requests:
            self._push(each.arrival_s, "arrive", each)
        now_s = 0.0
        while self._events:
            due_s = min(self.made.next_due_s, self.train_s)
            if due_s < self._events[0][0]:
                now_s = max(due_s, now_s + LEAST_S)
                if self.train_s <= now_s:
                    self._train(now_s)
                self._take(now_s, self.made.expire(now_s))
                continue
            at_s, _, event, what = heapq.heappop(self._events)
            now_s = max(now_s, at_s)
            self._take(now_s, self._happens(now_s, event, what))

    def kept_rps(self, start_s: float, end_s: float) -> float:
        """Requests per second that kept their SLO, of those that came from `start_s` to `end_s`."""
        return sum(start_s <= self.arrived[name] < end_s for name in self.kept) / (end_s - start_s)

    def _train(self, now_s: float) -> None:
        self.train_s += INTERVAL_S
        self.training.add(self.made.take_samples(), now_s)
        if self.training.train() and self.training.model is not None:
            self.made.use_model(self.training.model)

    def _happens(self, now_s: float, event: str, what: Any) -> RoutingOutcome:
        if event == "arrive":
            self.arrived[what.request_id], self.requests[what.request_id] = now_s, what
            return self.made.submit(now_s, what)
        if event == "first":
            self._take(now_s, self.made.prefilled(now_s, what))
            return self.made.first_token(now_s, what)
        return self.made.complete(now_s, what, self.requests[what].max_tokens)

    def _take(self, now_s: float, outcome: RoutingOutcome) -> None:
        self.shed |= {each.request_id for each in outcome.sheds}
        for placement in outcome.placements:
            name, asked = placement.request_id, self.requests[placement.request_id]
            slow, tracked = self.slowness(now_s, placement.decode_replica), self.made.choices[name].tracked
            first_s = now_s + slow * tracked[0].prior_ttft_s
            tpot_s = slow * tracked[-1].prior_tpot_s
            slo = asked.slo if asked.slo.given else self.made.state.slo
            self.placed[name], self.placed_s[name] = placement.decode_replica, now_s
            if first_s - asked.arrival_s <= slo.ttft_s and tpot_s <= slo.tpot_s:
                self.kept.add(name)
            self._push(first_s, "first", name)
            self._push(first_s + (asked.max_tokens - 1) * tpot_s, "done", name)

    def _push(self, at_s: float, event: str, what: Any) -> None:
        self._pushed += 1
        heapq.heappush(self._events, (at_s, self._pushed, event, what))


class LiveEngines:
    """Engines that compute what they have side by side, and clients some of whom leave at a first token."""

    def __init__(
        self, made: SeenRouter, profile: Profile, rules: EngineRules, leave: Set[str] = frozenset()
    ) -> None:
        """`leave`: tenants whose clients do."""
        self.made, self.leave = made, leave
        self.engines = {each.name: LiveEngine(profile, rules, each.role) for each in made.state.fleet}
        self.asked: dict[str, RouteRequest] = {}
        self.tokens_s: dict[str, list[float]] = {}

    def run(self, requests: Iterable[RouteRequest]) -> None:
        """Until the last request has ended."""
        coming, now_s = deque(sorted(requests, key=lambda each: each.arrival_s)), 0.0
        while coming or self.made.running or self.made.queued:
            arrival_s = coming[0].arrival_s if coming else np.inf
            boundaries_s = [
                at_s for each in self.engines.values() if (at_s := each.next_boundary_s()) is not None
            ]
            now_s = max(now_s, min(arrival_s, self.made.next_due_s, *boundaries_s))
            for boundary in [each for engine in self.engines.values() for each in engine.advance(now_s)]:
                for name in boundary.emitted:
                    self._token(boundary.at_s, name, last=name in boundary.finished)
            if arrival_s <= now_s:
                asked = coming.popleft()
                self.asked[asked.request_id] = asked
                self._take(now_s, self.made.submit(now_s, asked))
            self._take(now_s, self.made.expire(now_s))

    def kept(self, tenant: str) -> float:
        """The share of a tenant's requests that were served within their SLO."""
        of_tenant = [each for each in self.asked.values() if each.tenant == tenant]
        return sum(map(self._kept, of_tenant)) / len(of_tenant)

    def _kept(self, asked: RouteRequest) -> bool:
        times_s = self.tokens_s.get(asked.request_id, ())
        if len(times_s) < asked.max_tokens or times_s[0] - asked.arrival_s > asked.slo.ttft_s:
            return False
        return (times_s[-1] - times_s[0]) / (asked.max_tokens - 1) <= asked.slo.tpot_s

    def _token(self, now_s: float, name: str, *, last: bool) -> None:
        times_s = self.tokens_s.setdefault(name, [])
        times_s.append(now_s)
        if len(times_s) == 1:
            self._take(now_s, self.made.first_token(now_s, name))
            if self.asked[name].tenant in self.leave:
                for engine in self.engines.values():
                    engine.abort(name)
                self._take(now_s, self.made.failed(now_s, name, retry=False))
        if last:
            self._take(now_s, self.made.complete(now_s, name, len(times_s)))

    def _take(self, now_s: float, outcome: RoutingOutcome) -> None:
        for placement in outcome.placements:
            asked = self.asked[placement.request_id]
            engine = self.engines[placement.decode_replica]
            engine.submit(asked.request_id, asked.input_tokens, asked.max_tokens, at_s=now_s)


def stream(rate_rps: float, seconds: float, slo: RequestSlo, **changes: Any) -> list[RouteRequest]:
    """Requests at Poisson times, all alike: 1,000 tokens in and 100 out."""
    gaps_s = np.random.default_rng(0).exponential(1.0 / rate_rps, int(rate_rps * seconds))
    fields = {"input_tokens": 1000, "max_tokens": 100, "slo": slo, **changes}
    return [
        request(str(number), arrival_s=float(at_s), **fields) for number, at_s in enumerate(np.cumsum(gaps_s))
    ]
