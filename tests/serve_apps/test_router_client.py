"""What becomes of requests between a gateway and its router: in batches, late, lost, and after a restart."""

import asyncio
from math import inf

import pytest

from actors.routing.messages import (
    SILENT_S,
    Advanced,
    Again,
    Completed,
    FirstToken,
    Placed,
    Prefilled,
    Submit,
)
from headway.planning import Role
from headway.routing import ReplicaState, ReplicaUpdate, RouteRequest, RoutingOutcome
from serve_apps.gateway.backend import NotReady, Overloaded
from serve_apps.membership import SUSPECT_S
from serve_apps.routed.client import CALL_LIMIT_S, LINGER_S, RETRY_S, SIGN_S, TICK_S
from serve_apps.routed.table import AT_ONCE
from serve_apps.routed.table import RETRY_S as TRIED_AGAIN_S
from tests.actors.router_cases import asked, on
from tests.serve_apps.routed_cases import CALL_S, Gateway, Line, at_gateway

TIMEOUT_S = 0.25


def now() -> float:
    return asyncio.get_running_loop().time()


def request(name: str, **fields):
    return asked(name, now(), **fields)


async def greeted(gateway: Gateway) -> None:
    while gateway.client.counts.sessions == 0:
        await asyncio.sleep(CALL_S)
    await asyncio.sleep(1.0)


def submits(line: Line) -> list[list[str]]:
    """The requests asked for, batch by batch."""
    asked_for = [
        [event.request.request_id for event in batch.events if isinstance(event, Submit)]
        for batch in line.batches
    ]
    return [names for names in asked_for if names]


def said(line: Line, kind: type) -> list:
    return [event for batch in line.batches for event in batch.events if isinstance(event, kind)]


@at_gateway("a")
async def test_the_first_goes_at_once_and_the_others_with_the_next_call(gateway: Gateway, line: Line, /):
    await greeted(gateway)
    begun_s = now()
    first = gateway.client.submit(request("r0"))
    await asyncio.sleep(CALL_S / 10)
    others = [gateway.client.submit(request(f"r{n}")) for n in range(1, 6)]
    assert (await first.placed()).decode_replica == "a"
    assert now() - begun_s == pytest.approx(CALL_S)
    placements = [await routed.placed() for routed in others]
    assert now() - begun_s == pytest.approx(2 * CALL_S)
    assert {placement.profile for placement in placements} == {"slo"}
    assert submits(line) == [["r0"], ["r1", "r2", "r3", "r4", "r5"]]
    assert sum(gateway.client.counts.placements.values()) == 6


@at_gateway("a", "b", settings={"routing.offload": {"mode": "always", "heavy_tokens": 8000}})
async def test_the_router_hears_of_an_offloaded_prompt_and_its_first_token_at_once(
    gateway: Gateway, line: Line, /
):
    await greeted(gateway)
    routed = gateway.client.submit(request("r", input_tokens=9000))
    assert (await routed.placed()).split
    for tell, kind in ((routed.prefilled, Prefilled), (routed.first_token, FirstToken)):
        await asyncio.sleep(1.0)
        tell()
        await asyncio.sleep(CALL_S)
        assert len(said(line, kind)) == 1
    routed.complete()
    await asyncio.sleep(2 * LINGER_S)
    (trace,) = line.sessions.router.traces.take()
    assert trace.t_first_token - trace.t_prefill_done == pytest.approx(1.0 + CALL_S)


@at_gateway("a")
async def test_a_request_that_is_broken_off_is_charged_for_all_that_it_had(gateway: Gateway, line: Line, /):
    """Between two reports a client could have tokens for nothing."""
    await greeted(gateway)
    routed = gateway.client.submit(request("r"))
    await routed.placed()
    routed.first_token()
    routed.output_tokens = 40
    routed.close()
    await asyncio.sleep(2 * LINGER_S)
    assert [each.progress for each in said(line, Advanced)] == [(("r", 40),)]
    assert not line.sessions.router.running


@at_gateway("a")
async def test_what_is_not_urgent_waits_for_company(gateway: Gateway, line: Line, /):
    await greeted(gateway)
    routed = gateway.client.submit(request("r"))
    await routed.placed()
    await asyncio.sleep(1.0)
    calls, begun_s = len(line.batches), now()
    routed.first_token()
    routed.output_tokens = 7
    routed.complete()
    await asyncio.sleep(0.9 * LINGER_S)
    assert len(line.batches) == calls
    await asyncio.sleep(0.2 * LINGER_S)
    assert len(line.batches) == calls + 1
    (first,), (done,) = said(line, FirstToken), said(line, Completed)
    assert (first.at_s, done.output_tokens) == (begun_s, 7)
    assert line.sessions.router.running == 0


@at_gateway("a")
async def test_an_idle_gateway_gives_signs_of_life_and_no_more(gateway: Gateway, line: Line, /):
    await greeted(gateway)
    calls = len(line.batches)
    await asyncio.sleep(3600.0)
    signs = line.batches[calls:]
    assert len(signs) == pytest.approx(3600.0 / SIGN_S, abs=1)
    assert not any(batch.events for batch in signs)
    assert len(line.sessions.gateways) == 1


@at_gateway("a")
async def test_progress_is_told_now_and_then_and_never_per_token(gateway: Gateway, line: Line, /):
    await greeted(gateway)
    routed = gateway.client.submit(request("r", max_tokens=1000))
    await routed.placed()
    routed.first_token()
    for _ in range(1000):
        await asyncio.sleep(0.01)
        routed.output_tokens += 1
    told = [event.progress[0].output_tokens for event in said(line, Advanced)]
    assert len(told) == pytest.approx(10.0 / TICK_S, abs=2)
    assert told == sorted(set(told))
    routed.complete()


@at_gateway("a")
async def test_a_held_request_is_placed_by_letter_when_a_replica_comes(gateway: Gateway, line: Line, /):
    await greeted(gateway)
    gateway.pool.remove("a")
    await asyncio.sleep(2 * TICK_S)
    routed = gateway.client.submit(request("r"))
    await asyncio.sleep(20 * TIMEOUT_S)
    assert line.sessions.router.queued == 1
    gateway.pool.update([("b", {})])
    placement = await routed.placed()
    assert placement.decode_replica == "b"
    assert placement.queued_s > 10 * TIMEOUT_S
    assert not gateway.client.counts.fallbacks


@at_gateway("a", settings={"routing.queue.max_wait_s": 5.0})
async def test_a_shed_request_is_refused_with_what_the_router_says(gateway: Gateway, line: Line, /):
    await greeted(gateway)
    gateway.pool.remove("a")
    await asyncio.sleep(2 * TICK_S)
    routed = gateway.client.submit(request("r"))
    with pytest.raises(Overloaded, match="waited_too_long"):
        await asyncio.gather(routed.placed(), expire(line, 6.0))
    assert gateway.client.counts.sheds["waited_too_long"] == 1


async def expire(line: Line, after_s: float) -> None:
    await asyncio.sleep(after_s)
    line.sessions.expire(now())
    line.deliver()


@at_gateway("a")
async def test_without_the_router_requests_wait_for_a_saturated_replica_and_go_in_order(
    gateway: Gateway, line: Line, /
):
    await greeted(gateway)
    line.die()
    gateway.room = 0
    went: list[str] = []

    async def follow(name: str) -> None:
        await gateway.client.submit(request(name, critical=name == "critical")).placed()
        went.append(name)

    async with asyncio.TaskGroup() as tasks:
        for name in ("first", "second", "third"):
            tasks.create_task(follow(name))
            await asyncio.sleep(CALL_S)
        await asyncio.sleep(5.0)
        assert not went
        await follow("critical")
        gateway.room = 1
        await asyncio.sleep(2 * TRIED_AGAIN_S)
        assert went == ["critical", "first"]
        # A newcomer doesn't pass those that wait.
        tasks.create_task(follow("newcomer"))
        await asyncio.sleep(0)
        gateway.room = inf
        await asyncio.sleep(2 * TRIED_AGAIN_S)
    assert went == ["critical", "first", "second", "third", "newcomer"]
    assert not gateway.client.counts.sheds


@at_gateway("a", max_wait_s=20.0, most_waiting=2)
async def test_without_the_router_nobody_waits_longer_than_it_would_hold_them_nor_more_than_it_may(
    gateway: Gateway, line: Line, /
):
    await greeted(gateway)
    line.die()
    gateway.room = 0
    begun_s = now()
    first, second, third = (gateway.client.submit(request(name)) for name in ("a", "b", "c"))
    with pytest.raises(Overloaded, match="saturated"):
        await third.placed()
    assert now() == begun_s
    for each in (first, second):
        with pytest.raises(Overloaded, match="saturated"):
            await each.placed()
    assert now() - begun_s == pytest.approx(20.0)
    assert gateway.client.counts.sheds == {"saturated": 3}


@at_gateway("a")
async def test_many_that_wait_are_placed_without_a_long_pause_for_others(gateway: Gateway, line: Line, /):
    await greeted(gateway)
    line.die()
    gateway.room = 0
    many = [gateway.client.submit(request(f"r{number}")) for number in range(3 * AT_ONCE)]
    await asyncio.sleep(RETRY_S)
    gateway.room = inf
    await asyncio.sleep(TRIED_AGAIN_S)
    assert gateway.client.counts.fallbacks["unreachable"] == AT_ONCE
    for each in many:
        await each.placed()


@at_gateway("a")
async def test_a_router_that_is_back_takes_over_those_that_wait(gateway: Gateway, line: Line, /):
    await greeted(gateway)
    line.die()
    gateway.room = 0
    waiting = gateway.client.submit(request("r"))
    await asyncio.sleep(2.0)
    line.come_back()
    assert (await waiting.placed()).profile == "slo"
    gateway.room = inf
    await asyncio.sleep(2.0)
    assert line.sessions.router.running == 1
    assert gateway.client.counts.fallbacks == {}


@at_gateway("a")
async def test_a_client_that_leaves_waits_no_longer(gateway: Gateway, line: Line, /):
    await greeted(gateway)
    line.die()
    gateway.room = 0
    gone, stays = gateway.client.submit(request("gone")), gateway.client.submit(request("stays"))
    gone.close()
    gateway.room = inf
    assert (await stays.placed()).reason == "fallback"
    assert gateway.client.counts.fallbacks == {"unreachable": 1}


@at_gateway("a")
async def test_without_an_answer_in_time_the_gateway_places_by_itself(gateway: Gateway, line: Line, /):
    await greeted(gateway)
    line.stall()
    begun_s = now()
    first = await gateway.client.submit(request("r")).placed()
    assert now() - begun_s == pytest.approx(TIMEOUT_S)
    assert (first.reason, first.decode_replica) == ("fallback", "a")
    # The next one does not wait again.
    second = await gateway.client.submit(request("s")).placed()
    assert now() - begun_s == pytest.approx(TIMEOUT_S)
    assert second.reason == "fallback"
    assert gateway.client.counts.fallbacks == {"timeout": 1, "unreachable": 1}
    line.resume()
    await asyncio.sleep(1.0)
    # Its late answer changes nothing, and it knows of both.
    assert line.sessions.router.running == 2
    assert (await gateway.client.submit(request("t")).placed()).profile == "slo"


@at_gateway("a")
async def test_a_request_that_the_router_cannot_handle_is_placed_by_the_gateway_and_by_nothing_else(
    gateway: Gateway, line: Line, /
):
    await greeted(gateway)
    works = line.sessions.router.submit

    def broken(now_s: float, asked: RouteRequest) -> RoutingOutcome:
        if asked.request_id == "bad":
            raise ArithmeticError
        return works(now_s, asked)

    line.sessions.router.submit = broken  # type: ignore[method-assign]
    bad, good = gateway.client.submit(request("bad")), gateway.client.submit(request("good"))
    assert ((await bad.placed()).reason, (await good.placed()).profile) == ("fallback", "slo")
    assert gateway.client.counts.fallbacks == {"error": 1}
    await asyncio.sleep(1.0)
    # The session goes on, and the router has learned where the request is.
    assert gateway.client.counts.sessions == 1
    assert line.sessions.router.running == 2


@at_gateway("a")
async def test_a_router_that_dies_loses_no_request_and_learns_all_when_it_is_back(
    gateway: Gateway, line: Line, /
):
    await greeted(gateway)
    running = gateway.client.submit(request("running"))
    await running.placed()
    running.first_token()
    running.output_tokens = 5
    gateway.pool.remove("a")
    await asyncio.sleep(1.0)
    held = gateway.client.submit(request("held"))
    await asyncio.sleep(1.0)
    gateway.pool.update([("b", {})])
    line.die()
    assert (await gateway.client.submit(request("asked")).placed()).reason == "fallback"
    await asyncio.sleep(2.0)
    line.come_back()
    placement = await held.placed()
    assert (placement.profile, placement.decode_replica) == ("slo", "b")
    await asyncio.sleep(RETRY_S)
    # The one on a, which is dead, is not among them.
    assert line.sessions.router.running == 2
    restored = {event.running.request.request_id: event.running for event in said(line, Placed)}
    assert restored["running"].computed
    assert restored["running"].output_tokens == 5
    assert gateway.client.counts.sessions == 2


@at_gateway("a")
async def test_a_router_that_began_anew_between_two_calls_is_told_all(gateway: Gateway, line: Line, /):
    await greeted(gateway)
    await gateway.client.submit(request("r")).placed()
    line.come_back()
    assert (await gateway.client.submit(request("s")).placed()).decode_replica == "a"
    await asyncio.sleep(1.0)
    assert line.sessions.router.running == 2
    assert gateway.client.counts.sessions == 2


@at_gateway("a", gone_s=3.0)
async def test_who_was_held_is_placed_by_the_gateway_when_the_router_stays_away(
    gateway: Gateway, line: Line, /
):
    await greeted(gateway)
    gateway.pool.remove("a")
    await asyncio.sleep(1.0)
    held = gateway.client.submit(request("r"))
    await asyncio.sleep(1.0)
    gateway.pool.update([("b", {})])
    line.die()
    begun_s = now()
    placement = await held.placed()
    assert (placement.reason, placement.decode_replica) == ("fallback", "b")
    assert now() - begun_s == pytest.approx(3.0, abs=RETRY_S)


@at_gateway("a")
async def test_a_router_that_hangs_is_lost_after_a_while_and_met_anew(gateway: Gateway, line: Line, /):
    await greeted(gateway)
    routed = gateway.client.submit(request("r"))
    await routed.placed()
    line.stall()
    routed.complete()
    await asyncio.sleep(CALL_LIMIT_S + 1.0)
    line.resume()
    await asyncio.sleep(1.0)
    assert gateway.client.counts.sessions == 2
    assert line.sessions.router.running == 0


@at_gateway(max_wait_s=20.0)
async def test_without_any_replica_and_router_a_request_waits_for_either(gateway: Gateway, line: Line, /):
    line.die()
    served = gateway.client.submit(request("served"))
    await asyncio.sleep(2.0)
    gateway.pool.update([("a", {})])
    assert (await served.placed()).decode_replica == "a"
    gateway.pool.remove("a")
    begun_s = now()
    with pytest.raises(NotReady, match="no replica is running"):
        await gateway.client.submit(request("refused")).placed()
    assert now() - begun_s == pytest.approx(20.0)
    assert not gateway.client.counts.sheds


@at_gateway("a", "b")
async def test_a_newer_placement_is_heard_of_until_the_first_token(gateway: Gateway, line: Line, /):
    await greeted(gateway)
    routed, heard = gateway.client.submit(request("r")), []
    await routed.placed()
    routed.watch(lambda: heard.append(routed.placement))
    newer = on("b", routed.request, attempt=2).placement
    stale = on("c", routed.request, attempt=1).placement
    for placement in (stale, newer):
        line.sessions.gateways.get(gateway.client.name).placements.append(placement)
        line.deliver()
        await asyncio.sleep(0.1)
    assert heard == [newer]
    routed.first_token()
    line.sessions.gateways.get(gateway.client.name).placements.append(
        on("d", routed.request, attempt=3).placement
    )
    line.deliver()
    await asyncio.sleep(0.1)
    assert routed.placement == newer


@at_gateway("a", "b", "c")
async def test_two_newer_placements_at_once_are_heard_of_once(gateway: Gateway, line: Line, /):
    await greeted(gateway)
    routed, heard = gateway.client.submit(request("r")), []
    first = await routed.placed()
    routed.watch(lambda: heard.append(routed.placement))
    newer = [on(name, routed.request, attempt=number).placement for name, number in (("b", 2), ("c", 3))]
    line.sessions.gateways.get(gateway.client.name).placements += newer
    line.deliver()
    await asyncio.sleep(0.1)
    assert heard == newer[:1]
    assert await routed.placed() == newer[1]
    # The loss of an attempt that was given up already asks for nothing.
    routed.again(first)
    assert await routed.placed() == newer[1]
    assert not said(line, Again)


@at_gateway("a", "b")
async def test_who_are_placed_by_the_gateway_at_the_same_moment_are_spread(gateway: Gateway, line: Line, /):
    await greeted(gateway)
    line.stall()
    tickets = [gateway.client.submit(request(f"r{number}")) for number in range(10)]
    placements = [await routed.placed() for routed in tickets]
    assert {placement.reason for placement in placements} == {"fallback"}
    assert [placement.queued_s for placement in placements] == [pytest.approx(TIMEOUT_S)] * 10
    assert [member.load for member in gateway.pool.members] == [5, 5]
    for routed in tickets:
        routed.close()
    assert [member.load for member in gateway.pool.members] == [0, 0]


@at_gateway("a")
async def test_a_router_that_has_forgotten_a_gateway_is_met_anew_though_all_wait(
    gateway: Gateway, line: Line, /
):
    await greeted(gateway)
    gateway.pool.remove("a")
    await asyncio.sleep(2 * TICK_S)
    held = gateway.client.submit(request("r"))
    await asyncio.sleep(TICK_S)
    line.sessions.gateways.get(gateway.client.name).heard_s = now() - SILENT_S - 1.0
    line.sessions.expire(now())
    assert line.sessions.router.queued == 0
    await asyncio.sleep(SIGN_S + 1.0)
    assert line.sessions.router.queued == 1
    gateway.pool.update([("b", {})])
    assert (await held.placed()).profile == "slo"


@at_gateway("a")
async def test_replicas_come_are_suspect_and_go(gateway: Gateway, line: Line, /):
    updates: list[ReplicaUpdate] = []
    changed = line.sessions.router.replica_changed
    line.sessions.router.replica_changed = lambda now_s, update: (
        updates.append(update),
        changed(now_s, update),
    )[1]
    await greeted(gateway)
    gateway.pool.update([("a", {"running": 2, "waiting": 1, "kv_usage": 0.5}), ("b", {})])
    await asyncio.sleep(2 * TICK_S)
    gateway.pool.suspect("b", now())
    await asyncio.sleep(SUSPECT_S + 2 * TICK_S)
    routed = gateway.client.submit(request("r"))
    on_it = (await routed.placed()).decode_replica
    gateway.pool.update([])
    await asyncio.sleep(2 * TICK_S)
    routed.complete()
    await asyncio.sleep(2 * TICK_S)
    states = {name: [update.state for update in updates if update.replica == name] for name in ("a", "b")}
    ready, draining, gone = ReplicaState.READY, ReplicaState.DRAINING, ReplicaState.GONE
    assert updates[0] == ReplicaUpdate(replica="a", role=Role.MIXED)
    assert [update.load.running for update in updates if update.load] == [2]
    # Who has left the list with a request of ours drains until that one has ended.
    assert states[on_it][-2:] == [draining, gone]
    assert [ready, draining, ready] == states["b"][:3]
    assert states["a" if on_it == "b" else "b"][-2:] == [ready, gone]
