"""Cost of the router, without I/O: one decision on a large fleet, and submit + complete on a middling one.

A decision is `submit` of one request with 1,000 ready replicas of each role and 10,000 running requests, its
events are those that follow: prefilled, first token, complete. "learned": by a latency model that was trained
on what this router's own requests would have taken on engines slower than profiled. A pair is submit →
prefilled → first token → complete at 64 replicas of each role with some 700 requests there. All with a
profile's surfaces, sessions and prefix blocks. CPU time of the one thread, so that neighbours on the machine
count less; medians of several repeats with their range. "In batches" is all that the Router's process does
for a request: batches of the events of 20 requests are read, handled and answered (`actors.routing`).
"""

import pickle
from collections import deque
from pathlib import Path
from statistics import median
from time import thread_time

import numpy as np

from actors.routing.gateway_sessions import GatewaySessions
from actors.routing.messages import Batch, Completed, Event, FirstToken, Prefilled, Submit
from headway.config import HeadwayConfig, Role
from headway.engine import engine_profile, engine_rules
from headway.routing import ReplicaUpdate, RequestSlo, Router, RouteRequest, make_router
from headway.routing.learning import RecordedPrior, recorded_priors, training_samples, without_priors
from predictors.latency import LatencyModel, TrainingWindow, train

PROFILE = "llama-3.1-8b_h100_tp1"
POOLS = {"mixed": {"mixed": {}}, "disaggregated": {"prefill": {}, "decode": {}}}
REPEATS = 5
TAUGHT = 1500
BATCH = 20
"""Requests in a batch: of 2,000 a second, those of a hundredth."""


def main(data: Path | None) -> int:
    """Print the figures; `data` is not needed."""
    for pools in POOLS:
        for profile in ("slo", "slo, learned", "default", "least_load"):
            router, requests = filled(profile, pools, replicas=1000, running=10_000)
            submits, events = decisions(router, requests)
            name = f"1,000 replicas, 10,000 running, {pools} {profile}"
            show(f"decision, {name}", submits, "us")
            show(f"its events, {name}", events, "us")
            show(f"in batches, {name}", exchanges(router, requests), "us")
    for pools in POOLS:
        for profile in ("slo", "default", "least_load", "pull"):
            router, requests = filled(profile, pools, replicas=64, running=640)
            show(f"submit + complete, 64 replicas, {pools} {profile}", pairs(router, requests), "pairs/s")
    return 0


def show(what: str, figures: list[float], unit: str) -> None:
    """Median and range."""
    print(
        f"{what:64s} {median(figures):10,.1f} {unit}  ({min(figures):,.1f} … {max(figures):,.1f})", flush=True
    )


class Requests:
    """An endless stream of requests, alike from run to run."""

    def __init__(self) -> None:
        self._generator, self._number = np.random.default_rng(7), 0

    def next(self, now_s: float) -> RouteRequest:
        """One more."""
        draw, number = self._generator, self._number
        self._number += 1
        session = int(draw.random() * 2000)
        tokens = 512 + int(draw.random() * 3000)
        tight = number % 2 == 0
        return RouteRequest(
            request_id=f"r{number}",
            arrival_s=now_s,
            input_tokens=tokens,
            max_tokens=1024,
            slo=RequestSlo(ttft_s=0.5 if tight else 5.0, tpot_s=0.03 if tight else 0.1),
            critical=tight,
            session=f"s{session}",
            blocks=tuple(range(session * 10, session * 10 + tokens // 512)),
        )


def filled(profile: str, pools: str, *, replicas: int, running: int) -> tuple[Router, Requests]:
    """A router with a fleet of that size and so many requests that decode."""
    profile, _, learned = profile.partition(", ")
    config = HeadwayConfig.model_validate(
        {
            "engine": {"profile": PROFILE, "prefix_cache_tokens": 400_000},
            "pools": POOLS[pools],
            "routing": {"profile": profile},
        }
    )
    surfaces = engine_profile(config)
    router = make_router(config, {"": surfaces}, engine_rules(config, surfaces), np.random.default_rng(0))
    for number in range(replicas):
        for role in config.pools:
            router.replica_changed(0.0, ReplicaUpdate(replica=f"{role}-{number}", role=Role(role)))
    requests = Requests()
    for step in range(running):
        request = requests.next(step * 1e-3)
        router.submit(request.arrival_s, request)
        router.first_token(request.arrival_s, request.request_id)
    if learned:
        router.use_model(taught(router, requests))
    return router, requests


def taught(router: Router, requests: Requests) -> LatencyModel:
    """A model of engines that take one and a half times what is predicted, and some noise."""
    noise = np.random.default_rng(1)
    for number in range(TAUGHT):
        begun_s = 50.0 + 1e-2 * number
        request = requests.next(begun_s)
        for placement in router.submit(begun_s, request).placements:
            slowness = 1.5 * noise.lognormal(0.0, 0.1)
            first_s = begun_s + slowness * (placement.predicted_ttft_s or 0.0)
            router.prefilled(first_s, placement.request_id)
            router.first_token(first_s, placement.request_id)
            took_s = 99 * slowness * (placement.predicted_tpot_s or 0.0)
            router.complete(first_s + took_s, placement.request_id, 100)
    samples = router.take_samples()
    window = TrainingWindow()
    window.add(training_samples(samples))
    trained = train(window, recorded_priors(RecordedPrior(), RecordedPrior(), samples))
    if not trained.accepted:
        raise RuntimeError(f"nothing was learned of {len(samples)} samples")
    return without_priors(trained.model)


def decisions(router: Router, requests: Requests, count: int = 200) -> tuple[list[float], list[float]]:
    """Microseconds of `submit` and of the other events, the medians of each repeat."""
    figures, others = [], []
    now_s = 1000.0
    for _ in range(REPEATS):
        times, later = [], []
        for _ in range(count):
            now_s += 1e-3
            request = requests.next(now_s)
            begun = thread_time()
            router.submit(now_s, request)
            decided = thread_time()
            router.prefilled(now_s, request.request_id)
            router.first_token(now_s, request.request_id)
            router.complete(now_s, request.request_id, 100)
            times.append(decided - begun)
            later.append(thread_time() - decided)
        figures.append(median(times) * 1e6)
        others.append(median(later) * 1e6)
    return figures, others


def exchanges(router: Router, requests: Requests, count: int = 30) -> list[float]:
    """Microseconds of the Router's process for a request and all its events, of each repeat."""
    sessions, now_s, figures = GatewaySessions(router), 10_000.0, []
    sessions.exchange(now_s, "g", Batch(1, now_s, (), hello=True))
    ended: tuple[Event, ...] = ()
    for _ in range(REPEATS):
        frames = []
        for _ in range(count):
            now_s += 1e-2
            batch = [requests.next(now_s) for _ in range(BATCH)]
            submits = tuple(Submit(now_s, one) for one in batch)
            frames.append((now_s, pickle.dumps([("g", Batch(1, now_s, (*ended, *submits)))])))
            ended = tuple(
                event
                for one in batch
                for event in (
                    Prefilled(now_s, one.request_id),
                    FirstToken(now_s, one.request_id),
                    Completed(now_s, one.request_id, 100),
                )
            )
        begun = thread_time()
        for at_s, frame in frames:
            for name, said in pickle.loads(frame):
                pickle.dumps([sessions.exchange(at_s, name, said)], pickle.HIGHEST_PROTOCOL)
        figures.append((thread_time() - begun) / (count * BATCH) * 1e6)
    return figures


def pairs(router: Router, requests: Requests, count: int = 3000) -> list[float]:
    """Requests through all their events, per second; beside the 640, the oldest of 64 completes each time."""
    figures, now_s = [], 100.0
    under_way: deque[str] = deque()
    for _ in range(REPEATS):
        batch = [requests.next(now_s + 1e-2 * step) for step in range(count)]
        begun = thread_time()
        for request in batch:
            now_s, request_id = request.arrival_s, request.request_id
            router.submit(now_s, request)
            router.prefilled(now_s, request_id)
            router.first_token(now_s, request_id)
            under_way.append(request_id)
            if len(under_way) > 64:
                router.complete(now_s, under_way.popleft(), 100)
        figures.append(count / (thread_time() - begun))
    return figures
