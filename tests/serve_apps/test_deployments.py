"""The deployments over real engines, without Serve: parts of requests, reports, and calls made again."""

import asyncio
from types import SimpleNamespace

import pytest
from ray.exceptions import RaySystemError

from headway.config import HeadwayConfig
from serve_apps import deployments
from serve_apps.deployments import Decode, EngineReplica, Mixed, Prefill, gpu_type_of_node
from serve_apps.engines.protocol import EngineFailed, EngineRequest, KvHandle, TokenChunk
from tests.engines.engine_cases import MIXED, SPLIT, config_of, request, route
from tests.engines.virtual_loop import on_virtual_time


async def begun(kind: type[EngineReplica], *given) -> EngineReplica:
    """As Serve makes one, whose constructor it awaits."""
    made = kind.__new__(kind)
    await made.__init__(*given)
    return made


@pytest.fixture
def replica(monkeypatch):
    """A maker of replicas, as Serve would start them."""
    names = iter(range(100))

    async def make(kind: type[EngineReplica], **engine) -> EngineReplica:
        replica_id = SimpleNamespace(unique_id=f"{kind.__name__}-{next(names)}")
        monkeypatch.setattr(
            deployments.serve,
            "get_replica_context",
            lambda: SimpleNamespace(replica_id=replica_id, app_name="headway"),
        )
        return await begun(kind, config(kind, **engine))

    return make


def config(kind: type[EngineReplica], **engine) -> HeadwayConfig:
    return config_of(MIXED if kind is Mixed else SPLIT, **engine)


def asked(max_tokens=6) -> EngineRequest:
    return request(max_tokens=max_tokens, route=route(session="s"))


async def counted(decoding: Decode, request: EngineRequest, kv: KvHandle | None) -> int:
    """Tokens of an output."""
    return sum([chunk.tokens async for chunk in decoding.answer(request, kv)])


@pytest.mark.parametrize(("first", "second"), [(Prefill, Decode), (Mixed, Mixed)])
@on_virtual_time
async def test_a_request_in_two_parts(replica, first, second):
    prefilling, decoding = await replica(first), await replica(second)
    kv = await prefilling.prefill(asked())
    assert kv.engine_id == prefilling.replica
    assert (await counted(decoding, asked(), kv)) == 6


@on_virtual_time
async def test_a_cancelled_call_does_not_end_the_one_made_again(replica):
    prefilling = await replica(Prefill)
    calls = [asyncio.create_task(prefilling.prefill(request(input_tokens=9_000))) for _ in range(2)]
    await asyncio.sleep(0.01)
    calls[0].cancel()
    kv = await calls[1]
    assert kv.input_tokens == 9_000


@on_virtual_time
async def test_routers_see_totals_and_busy_time_of_a_replica_that_does_both_parts(replica):
    engine = await replica(Mixed)
    assert await counted(engine, asked(), None) == 6
    stats = await engine.record_routing_stats()
    assert (stats["prompt_tokens"], stats["cached_tokens"], stats["external_tokens"]) == (20, 0, 0)
    assert stats["busy_s"] > 0.0


@pytest.mark.parametrize(
    ("engine", "told"), [({}, "H100"), ({"gpu_type": "L20"}, "L20"), ({"gpu_type": ""}, "")]
)
@on_virtual_time
async def test_routers_see_the_gpu_type_of_the_settings_or_else_of_the_node(
    replica, monkeypatch, engine, told
):
    monkeypatch.setattr(deployments, "gpu_type_of_node", lambda: "H100")
    mixed = await replica(Mixed, **engine)
    assert ((await mixed.record_routing_stats())["gpu_type"], (await mixed.describe())["gpu_type"]) == (
        told,
        told,
    )


class Reports:
    """Reporters, by what they were made with."""

    def __init__(self) -> None:
        self.meters, self.periods_s, self.replicas, self.started = [], [], [], 0

    def __call__(self, meter, period_s, actor, replica):
        self.meters.append(meter)
        self.periods_s.append(period_s)
        self.replicas.append(replica)
        return SimpleNamespace(start=self._start, standing={})

    def _start(self) -> None:
        self.started += 1


@pytest.fixture
def reports(monkeypatch) -> Reports:
    found = Reports()
    monkeypatch.setattr(deployments, "LatencyReporter", found)
    return found


@pytest.mark.parametrize(("kind", "phases"), [(Prefill, ["prefill"]), (Mixed, ["prefill", "decode"])])
@on_virtual_time
async def test_replicas_report_what_they_see_where_the_profile_is_refined(replica, reports, kind, phases):
    serving = await replica(kind, refinement={"enabled": True, "report_interval_s": 2.5})
    if kind is Mixed:
        await counted(serving, asked(20), None)
    else:
        await serving.prefill(asked())
    assert (await serving.stats()).running == 0
    (meter,) = reports.meters
    assert (reports.periods_s, reports.started) == ([2.5], 1)
    assert len(reports.replicas) == 1
    assert reports.replicas[0]
    assert [seen.phase.value for seen in meter.take()] == phases


@on_virtual_time
async def test_replicas_of_a_gpu_type_with_a_profile_of_its_own_do_not_report(replica, reports):
    await replica(Prefill, refinement={"enabled": False})
    settings = config(Prefill, gpu_type="L20").model_dump()
    named = settings | {"routing": {"gpu_profiles": {"L20": "qwen3-32b_h100_tp2"}}}
    await begun(Prefill, HeadwayConfig.model_validate(named))
    assert reports.meters == []
    await begun(Prefill, HeadwayConfig.model_validate(settings))
    assert len(reports.meters) == 1


HERE = "node-1"


def ray_saying(labels, resources, *, running=True):
    context = SimpleNamespace(get_node_labels=lambda: labels, get_node_id=lambda: HERE)
    others = {"NodeID": "node-2", "Resources": {"accelerator_type:A100": 1.0}}
    return SimpleNamespace(
        is_initialized=lambda: running,
        get_runtime_context=lambda: context,
        nodes=lambda: [others, {"NodeID": HERE, "Resources": resources}],
    )


@pytest.mark.parametrize(
    ("labels", "resources", "told"),
    [
        ({"ray.io/accelerator-type": "H100"}, {"accelerator_type:L20": 1.0}, "H100"),
        ({"ray.io/node-id": HERE}, {"CPU": 4.0, "accelerator_type:L20": 1.0}, "L20"),
        ({}, {"CPU": 4.0}, ""),
    ],
)
def test_the_label_comes_first_then_the_resource_of_this_node(monkeypatch, labels, resources, told):
    monkeypatch.setattr(deployments, "ray", ray_saying(labels, resources))
    assert gpu_type_of_node() == told


def test_without_ray_none_is_started(monkeypatch):
    absent = ray_saying({"ray.io/accelerator-type": "H100"}, {}, running=False)
    monkeypatch.setattr(deployments, "ray", absent)
    assert gpu_type_of_node() == ""


def test_a_replica_starts_although_ray_does_not_say(monkeypatch):
    def fail():
        raise RaySystemError("the GCS is away")

    silent = ray_saying({}, {})
    silent.nodes = fail
    monkeypatch.setattr(deployments, "ray", silent)
    assert gpu_type_of_node() == ""


class Endless:
    """An engine that does not count: `size` tokens in each chunk, until it is closed or `fails`."""

    def __init__(self, size: int, fails: bool) -> None:
        self.size, self.fails, self.made, self.closed = size, fails, 0, False

    def stats(self):
        return SimpleNamespace(cached_tokens=0)

    async def decode(self, request, kv):
        try:
            while True:
                self.made += 1
                if self.fails and self.made > 1:
                    raise RuntimeError("out of memory")
                yield TokenChunk("x", self.size)
        finally:
            self.closed = True


async def endless(monkeypatch, size=1, *, fails=False) -> tuple[Mixed, Endless]:
    context = SimpleNamespace(replica_id=SimpleNamespace(unique_id="r"), app_name="headway")
    monkeypatch.setattr(deployments.serve, "get_replica_context", lambda: context)
    engine = Endless(size, fails)
    return await begun(Mixed, config(Mixed), lambda *_: engine), engine


@pytest.mark.parametrize(("size", "chunks"), [(1, 6), (4, 2), (6, 1), (100, 1)])
@on_virtual_time
async def test_a_stream_ends_at_max_tokens_whatever_the_engine_does(monkeypatch, size, chunks):
    replica, engine = await endless(monkeypatch, size)
    made = [chunk async for chunk in replica.decode(asked(6), None)]
    assert sum(chunk.tokens for chunk in made) == 6
    assert [chunk.finish_reason for chunk in made] == [None] * (chunks - 1) + ["length"]
    assert engine.closed
    assert engine.made == chunks


@on_virtual_time
async def test_what_an_engine_raises_is_the_failure_of_the_engine(monkeypatch):
    replica, _ = await endless(monkeypatch, fails=True)
    with pytest.raises(EngineFailed, match=r"^RuntimeError: out of memory$"):
        await counted(replica, asked(6), None)


@pytest.mark.usefixtures("reports")
@on_virtual_time
async def test_an_engine_that_hangs_under_work_is_replaced_where_the_settings_say_so(replica):
    kept, replaced = await replica(Mixed), await replica(Mixed, restart_silent_after_s=20.0)
    working = []
    for engine in (kept, replaced):
        await engine.inject("stall")
        await health(engine, 30)
        working.append(asyncio.create_task(counted(engine, asked(), None)))
    await health(kept, 60)
    await health(replaced, 19)
    with pytest.raises(EngineFailed, match="no progress on 1 request for 20 s"):
        await health(replaced, 4)
    for engine in (kept, replaced):
        await engine.inject("clear")
    assert await asyncio.gather(*working) == [6, 6]
    await health(replaced, 60)


async def health(engine: EngineReplica, seconds: int) -> None:
    """Ask for it every two seconds, as Serve does."""
    for _ in range(seconds // 2):
        await asyncio.sleep(2.0)
        await engine.check_health()
