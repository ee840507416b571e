"""A rehearsal before the first real requests, which compilation at first use would hold up for seconds.

    one at a time   one that is placed, one for offload, a critical one whose SLO is lost, and one that is
                    refused; each by the deployment's profile, and by predictions as headers may ask
    a crowd         two tenants, while every engine says that it has no room; then there is room, a model
                    has been learned, and what was placed runs to its end while the rest waits
    doubts          requests are refused for so long that outcomes are sought

What is compiled is kept on disk, so only the first router of a new installation takes long over it.
"""

from collections.abc import Sequence
from itertools import product

import numpy as np

from headway.config import HeadwayConfig, Role
from headway.engine.kinds import engine_kind
from headway.routing import OutputProgress, ReplicaLoad, ReplicaUpdate, RequestSlo, RouteRequest
from headway.routing.predict.evidence import LONGEST_GAP_S
from headway.routing.router import Router
from predictors.latency import LatencyModel, TargetModel
from predictors.latency.curve import Basis, Curve, Learned

KEPT, LOST = RequestSlo(ttft_s=60.0, tpot_s=1.0), RequestSlo(ttft_s=1e-6, tpot_s=1e-6)
TENANTS, PROMPTS = ("a", "b"), (1000, 1001, 50_000)
"""Of the longest a replica has room for few, by whatever profile."""

STEP_S, STEPS, DOUBTS = 0.3, 12, 10


def rehearse(router: Router, config: HeadwayConfig) -> None:
    """Have `router`, which is thrown away afterwards, do all that a router of `config` may have to."""
    replicas = [(role + name, Role(role)) for role, name in product(config.pools, "ab")]
    for replica, role in replicas:
        router.replica_changed(0.0, ReplicaUpdate(replica=replica, role=role))
    router.use_model(as_believed())
    _crowd(router, replicas, tight=_one_at_a_time(router, config))
    for number in range(DOUBTS):
        at_s = 100.0 + LONGEST_GAP_S * number
        asked = RouteRequest(
            request_id=f"doubt-{number}",
            arrival_s=at_s,
            input_tokens=1,
            max_tokens=1,
            slo=LOST,
            prediction_based=True,
        )
        router.submit(at_s, asked)


def _one_at_a_time(router: Router, config: HeadwayConfig) -> RequestSlo:
    """The SLO that an idle replica just keeps is given back, where something was predicted."""
    tpot_s = 0.0
    heavy_tokens = config.routing.offload.heavy_tokens
    adapter = next(iter(engine_kind(config).adapters(config)), "")
    kinds = ((1, KEPT, False), (heavy_tokens, KEPT, False), (1, LOST, True), (1, LOST, False))
    for number, ((tokens, slo, critical), judged) in enumerate(product(kinds, (False, True))):
        request = RouteRequest(
            request_id=str(number),
            arrival_s=0.0,
            input_tokens=tokens,
            max_tokens=1,
            slo=slo,
            critical=critical,
            prediction_based=judged,
            adapter=adapter,
        )
        for placement in router.submit(0.0, request).placements:
            tpot_s = max(tpot_s, placement.predicted_tpot_s or 0.0)
        router.prefilled(0.0, request.request_id)
        router.complete(0.0, request.request_id, 1)
    router.expire(1.0)
    return RequestSlo(ttft_s=60.0, tpot_s=1.001 * tpot_s or 1.0)


def _crowd(router: Router, replicas: Sequence[tuple[str, Role]], tight: RequestSlo) -> None:
    now_s, names = STEP_S, list[str]()
    _report(router, now_s, replicas, waiting=1_000_000)
    kinds = product(PROMPTS, TENANTS, (KEPT, tight, LOST, RequestSlo()), (False, True))
    for number, (input_tokens, tenant, slo, critical) in enumerate(kinds):
        names.append(f"crowd-{number}")
        request = RouteRequest(
            request_id=names[-1],
            arrival_s=now_s,
            input_tokens=input_tokens,
            max_tokens=100,
            slo=slo,
            critical=critical,
            tenant=tenant,
            session=tenant,
            blocks=(1, 2, 3),
            block_tokens=256,
            prediction_based=slo.given and input_tokens == PROMPTS[1],
        )
        router.submit(now_s, request)
    for step in range(STEPS):
        now_s += STEP_S
        _report(router, now_s, replicas, waiting=0)
        router.expire(now_s)
        # Those of them that are held know nothing of these events.
        for name in names[step::STEPS]:
            router.prefilled(now_s, name)
            router.first_token(now_s, name)
            router.progress(now_s, [OutputProgress(name, 2)])
        for name in names[step::STEPS]:
            if name in router:
                router.complete(now_s + 0.5 * STEP_S, name, 100)


def _report(router: Router, now_s: float, replicas: Sequence[tuple[str, Role]], waiting: int) -> None:
    load = ReplicaLoad(running=1, waiting=waiting, kv_usage=0.1, busy_s=now_s)
    for replica, role in replicas:
        router.replica_changed(now_s, ReplicaUpdate(replica=replica, role=role, load=load))


def as_believed() -> LatencyModel:
    """A learned model that says what its prior says."""
    nothing = np.empty(0)
    basis = Basis(source=np.empty(0, np.intp), start=nothing, width=nothing, has_prior=True)
    curve = Curve(basis=basis, weights=np.array([0.0, 1.0]))
    believed = TargetModel(learned=Learned(centre=curve, quantile=curve))
    return LatencyModel(ttft=believed, tpot=believed)
