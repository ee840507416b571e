"""The open loop against a real server over HTTP."""

import asyncio
from collections.abc import Callable

import pytest
from aiohttp import web
from openai_server import begin, event, never, script, serving, stream, text

from headway.loadgen import (
    LoadError,
    LoadPlan,
    LoadTally,
    ReplayCallbacks,
    ReplayProgress,
    RequestRecord,
    fetch_models,
    replay,
)
from headway.planning import Slo
from headway.workload import open_trace
from tests.patience import PATIENCE_S, eventually, with_longer_limits
from tests.ports import free_port

BURST = "steady:rate_rps=500,duration_s=0.1,input_tokens=20,output_tokens=6,output_cv=0,seed=1"
SLO = Slo(ttft_s=600.0, itl_s=600.0)


def run(
    url: str,
    load: str = BURST,
    *,
    watchers: ReplayCallbacks | None = None,
    stop_when: Callable[[], bool] | None = None,
    **settings: object,
) -> LoadTally:
    patient = {"timeout_s": PATIENCE_S, **settings}
    plan = LoadPlan(url=url, model="test-model", slo=SLO, **patient)  # type: ignore[arg-type]
    stop = asyncio.Event()

    async def watch() -> None:
        if stop_when is not None:
            await eventually(stop_when)
            stop.set()

    async def whole() -> LoadTally:
        with open_trace(load) as trace:
            tally, _ = await asyncio.gather(replay(trace, plan, watchers or ReplayCallbacks(), stop), watch())
        return tally

    return asyncio.run(whole())


def test_everything_arrives_and_is_counted() -> None:
    with serving(stream(tokens_per_chunk=2)) as server:
        tally = run(server.url, api_key="k")
        with open_trace(BURST) as trace:
            assert len(server.bodies) == trace.request_count == tally.completed == tally.requests
    assert tally.attainment == 1.0
    assert tally.output_tokens == 6 * tally.requests
    assert tally.latencies["itl_s"].weight == pytest.approx(5 * tally.requests)
    assert server.headers[0]["Authorization"] == "Bearer k"


def test_tokens_without_text_count_where_usage_is_said_all_along() -> None:
    """Half of a character has no text, and is a token all the same."""
    counts = [{"usage": {"completion_tokens": count, "prompt_tokens": 20}} for count in (1, 2, 3)]
    pieces = [event(**text(""), **counts[0]), event(**text("é"), **counts[1]), event(**text(""), **counts[2])]
    end = event(choices=[], **counts[2])
    records: list[RequestRecord] = []
    with serving(script(*pieces, end, b"data: [DONE]\n\n")) as server:
        run(server.url, watchers=ReplayCallbacks(on_record=records.append))
    assert {(record.chunks, record.output_tokens, record.outcome.value) for record in records} == {
        (3, 3, "ok")
    }


def test_usage_that_comes_only_at_the_end_is_no_token() -> None:
    pieces = [
        event(**text("a")),
        event(**text("b")),
        event(**text("", "length"), usage={"completion_tokens": 2}),
    ]
    records: list[RequestRecord] = []
    with serving(script(*pieces, b"data: [DONE]\n\n")) as server:
        run(server.url, watchers=ReplayCallbacks(on_record=records.append))
    assert {(record.chunks, record.output_tokens) for record in records} == {(2, 2)}


def test_a_stalling_server_does_not_slow_the_sender_and_its_stall_is_in_the_latencies() -> None:
    """Every answer waits for the last request: a closed loop would never send it."""
    with open_trace(BURST) as trace:
        wanted = trace.request_count
        first_s = float(next(trace.chunks()).arrival_s[0])
    arrived = 0
    answer = stream()

    async def handler(request: web.Request, body: dict[str, object]) -> web.StreamResponse:
        nonlocal arrived
        arrived += 1
        await eventually(lambda: arrived >= wanted)
        return await answer(request, body)

    records: list[RequestRecord] = []
    with serving(handler) as server:
        tally = run(server.url, watchers=ReplayCallbacks(on_record=records.append))
        sent_after = [record.sent_s for record in records]
    assert tally.completed == wanted
    last_due_s = max(record.intended_s for record in records)
    by_index = sorted(records, key=lambda record: record.index)
    assert by_index[0].ttft_s is not None
    assert by_index[0].ttft_s >= last_due_s - first_s
    assert all(sent is not None for sent in sent_after)


@pytest.mark.parametrize(
    ("handler", "outcome", "detail"),
    [
        (script(b'{"error":{"message":"busy"}}', status=429), "shed", "429: busy"),
        (script(b"no such thing", status=404), "http 404", "404: no such thing"),
        (
            script(event(**text("a")), event(error={"message": "engine failed"})),
            "error event",
            "engine failed",
        ),
        (script(event(**text("a"))), "incomplete", "the stream ended without [DONE]"),
        (script(b"data: [DONE]\n\n"), "incomplete", "the stream had no text"),
    ],
)
def test_outcomes(handler: object, outcome: str, detail: str) -> None:
    with serving(handler) as server:  # type: ignore[arg-type]
        tally = run(server.url)
    assert dict(tally.outcomes) == {outcome: tally.requests}
    assert tally.details == {detail: tally.requests}
    assert tally.attainment == 0.0
    assert tally.shed == (tally.requests if outcome == "shed" else 0)


def test_a_connection_that_breaks_off() -> None:
    async def handler(request: web.Request, body: dict[str, object]) -> web.StreamResponse:
        response = await begin(request)
        await response.write(event(**text("a")))
        assert request.transport is not None
        request.transport.abort()
        return response

    with serving(handler) as server:
        tally = run(server.url)
    assert set(tally.outcomes) == {"connection"}
    assert tally.latencies["ttft_s"].weight == tally.requests


def test_no_server_is_an_outcome_and_not_an_exception() -> None:
    assert set(run(f"http://127.0.0.1:{free_port()}").outcomes) == {"connection"}


def test_time_out() -> None:
    def timed_out(limit_s: float) -> None:
        with serving(never) as server:
            tally = run(server.url, timeout_s=limit_s)
            assert server.bodies, "no request arrived within its time"
            assert server.disconnected.wait(PATIENCE_S)
        assert set(tally.outcomes) == {"timeout"}

    with_longer_limits(timed_out, 0.2, 2.0, 20.0, 60.0)


def test_too_many_in_flight_fail_and_are_not_delayed() -> None:
    records: list[RequestRecord] = []
    answer = stream()

    async def handler(request: web.Request, body: dict[str, object]) -> web.StreamResponse:
        await eventually(lambda: len(records) >= wanted - 3)
        return await answer(request, body)

    with open_trace(BURST) as trace:
        wanted = trace.request_count
    with serving(handler) as server:
        tally = run(server.url, watchers=ReplayCallbacks(on_record=records.append), max_in_flight=3)
        assert len(server.bodies) == 3
    assert tally.outcomes == {"client overload": wanted - 3, "ok": 3}
    assert tally.failed == wanted - 3


def test_stopping_gives_the_totals_so_far_and_closes_the_connections() -> None:
    with serving(never) as server:
        endless = BURST.replace("duration_s=0.1", "duration_s=100")
        tally = run(server.url, endless, stop_when=lambda: bool(server.bodies))
        assert server.disconnected.wait(PATIENCE_S)
    assert tally.requests == 0
    # One may have been on its way to the server.
    assert tally.unfinished >= len(server.bodies) > 0


def test_progress_is_told() -> None:
    told: list[ReplayProgress] = []
    with serving(stream()) as server:
        tally = run(server.url, watchers=ReplayCallbacks(on_progress=told.append, progress_every_s=0.01))
    assert told
    sent = [state.sent for state in told]
    assert sent == sorted(sent)
    assert sent[-1] <= tally.requests


def test_models() -> None:
    with serving(never) as server:
        server.models = ("one", "two")
        assert asyncio.run(fetch_models(server.url)) == ["one", "two"]
        server.models = ()
        with pytest.raises(LoadError, match="lists no model"):
            asyncio.run(fetch_models(server.url))
    nobody = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(LoadError, match=f"{nobody}/v1/models: "):
        asyncio.run(fetch_models(nobody))
