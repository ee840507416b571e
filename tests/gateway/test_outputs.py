"""Calls with several outputs: one request for each, and one answer. tests/ray has separate pools."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection
from typing import Any

import numpy as np
import openai
import pytest

from headway.config import HeadwayConfig, load_config
from headway.routing.types import RouteRequest
from serve_apps.engines.protocol import TokenChunk
from serve_apps.faults import BodyTooLarge
from serve_apps.gateway.app import GatewayApp, make_app
from serve_apps.gateway.backend import Overloaded, ReplicaLost
from serve_apps.gateway.outputs import Shape
from serve_apps.gateway.reading import CallReader, GenerationRequest
from serve_apps.gateway.responses import CHAT_COMPLETIONS, COMPLETIONS, RESPONSES, Endpoint
from tests.engines.virtual_loop import run
from tests.gateway.conftest import Serve, client
from tests.gateway.doubles import WAIT, ScriptedBackend, Step, chunks
from tests.gateway.one_engine import OneEngine
from tests.gateway.routed_engines import RoutedEngines
from tests.gateway.serving import Running, ask_in_no_time, asked, get, post, serving, until

CONFIG = HeadwayConfig.model_validate({"model": "m", "engine": {"time_scale": 50.0}, "pools": {"mixed": {}}})
USER: list[Any] = [{"role": "user", "content": "Hi"}]
USAGE = {"include_usage": True}


def read(endpoint: Endpoint, **fields: Any) -> Sequence[GenerationRequest]:
    return CallReader(separate=True).read(endpoint, (), json.dumps(fields).encode())


def bodies(asked: Sequence[GenerationRequest]) -> list[dict[str, Any]]:
    return [json.loads(call.body) for each in asked for call in each.calls]


def letters(number: int) -> Sequence[Step]:
    """The outputs of calls are `a`, `bb`, `ccc` …, a letter a token."""
    letter = chr(97 + number)
    return chunks(*[letter] * (number + 1))


class TestBodies:
    def test_each_output_has_a_body_of_its_own(self) -> None:
        asked = read(COMPLETIONS, prompt=["x", [1, 2]], n=2, best_of=2, seed=7, max_tokens=5, top_k=3)
        shared = {"max_tokens": 5, "top_k": 3}
        assert bodies(asked) == [
            shared | {"prompt": prompt, "seed": seed} for prompt in ("x", [1, 2]) for seed in (7, 8)
        ]
        assert [each.fields["prompt"] for each in asked] == ["x", [1, 2]]
        assert all(call.divisible for each in asked for call in each.calls)

    @pytest.mark.parametrize(
        ("seed", "then"), [(None, None), (-1, -1), ("x", "x"), (2**63, 2**63), (2**63 - 1, -(2**63))]
    )
    def test_a_seed_that_is_none_stays_as_it_is(self, seed: object, then: object) -> None:
        assert [each["seed"] for each in bodies(read(CHAT_COMPLETIONS, messages=USER, n=2, seed=seed))] == [
            seed,
            then,
        ]

    def test_nothing_but_a_seed_is_a_body(self) -> None:
        assert bodies(read(CHAT_COMPLETIONS, n=2, seed=1)) == [{"seed": 1}, {"seed": 2}]

    def test_copies_without_a_seed_share_their_bytes(self) -> None:
        (asked,) = read(CHAT_COMPLETIONS, messages=USER, n=128)
        assert len({id(call.body) for call in asked.calls}) == 1

    @pytest.mark.parametrize(
        ("endpoint", "fields"),
        [
            (COMPLETIONS, {"prompt": ["x"], "n": 1, "best_of": 1}),
            (COMPLETIONS, {"prompt": [5, 6]}),
            (COMPLETIONS, {"prompt": [], "n": None}),
            (CHAT_COMPLETIONS, {"messages": USER, "prompt": ["unknown", "here"]}),
            (RESPONSES, {"input": "x", "n": 5}),
        ],
    )
    def test_a_call_with_one_output_stays_as_it_came(
        self, endpoint: Endpoint, fields: dict[str, Any]
    ) -> None:
        body = json.dumps(fields).encode() + b"  "
        (asked,) = CallReader(separate=True).read(endpoint, (), body)
        assert [call.body for call in asked.calls] == [body]

    def test_embedded_prompts_are_prompts(self) -> None:
        asked = read(COMPLETIONS, prompt="", prompt_embeds=["AA", "BB"])
        assert bodies(asked) == [{"prompt_embeds": "AA"}, {"prompt_embeds": "BB"}]

    def test_beams_stay_together(self) -> None:
        body = json.dumps({"prompt": ["x", "y"], "n": 4, "use_beam_search": True}).encode()
        asked = CallReader(separate=False).read(COMPLETIONS, (), body)
        assert [(each.beams, len(each.calls)) for each in asked] == [(4, 1), (4, 1)]
        assert [each["n"] for each in bodies(asked)] == [4, 4]

    def test_a_call_does_not_become_more_bytes_than_a_gateway_holds(self) -> None:
        with pytest.raises(BodyTooLarge, match="67108864 bytes"):
            read(CHAT_COMPLETIONS, messages=[{"role": "user", "content": "x" * 2**20}], n=65)

    def test_a_small_gateway_says_how_many_it_can_serve(self) -> None:
        with pytest.raises(openai.BadRequestError, match="5 outputs, and a call has at most 4"):
            self._ask(5)
        assert len(self._ask(4)) == 4

    @staticmethod
    def _ask(n: int) -> Sequence[Any]:
        config = HeadwayConfig.model_validate({"model": "m", "gateway": {"max_requests": 4}})
        with serving(config, ScriptedBackend(letters)) as running, client(running) as api:
            return api.chat.completions.create(model="m", messages=USER, n=n).choices


def backend_of(running: Running) -> ScriptedBackend:
    backend = running.app.state.traffic.backend
    assert isinstance(backend, ScriptedBackend)
    return backend


class TestAnswers:
    def test_prompts_and_copies_are_one_document(self, serve: Serve) -> None:
        running = serve(ScriptedBackend(letters))
        with client(running) as api:
            answer = api.completions.create(model="m", prompt=["12345678", "1234"], n=2)
        assert [(each.index, each.text) for each in answer.choices] == [
            (0, "a"),
            (1, "bb"),
            (2, "ccc"),
            (3, "dddd"),
        ]
        usage = answer.usage
        assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (2 + 1, 10, 13)
        backend = backend_of(running)
        assert [each.prompt for each in backend.parts] == ["12345678", "12345678", "1234", "1234"]
        assert [each.input_tokens for each in backend.requests] == [2, 2, 1, 1]
        assert answer.id in {each.request_id for each in backend.requests}
        assert len({each.request_id for each in backend.requests}) == 4
        until(lambda: backend.completed == 4)
        assert backend.aborted == 0

    def test_streams_come_as_one(self, serve: Serve) -> None:
        with client(serve(ScriptedBackend(letters))) as api:
            *events, last = api.chat.completions.create(
                model="m", messages=USER, n=3, stream=True, stream_options=USAGE
            )
        texts, roles = ["", "", ""], Counter[int]()
        for event in events:
            (choice,) = event.choices
            texts[choice.index] += choice.delta.content
            roles[choice.index] += choice.delta.role is not None
        assert texts == ["a", "bb", "ccc"]
        assert roles == {0: 1, 1: 1, 2: 1}
        assert Counter(choice.finish_reason for event in events for choice in event.choices)["length"] == 3
        assert len({(event.id, event.created) for event in (*events, last)}) == 1
        assert (last.choices, last.usage.completion_tokens) == ([], 6)

    def test_a_stream_leaves_as_it_comes_and_ends_once(self, serve: Serve) -> None:
        """One output is complete, and the other has not begun."""
        running = serve(ScriptedBackend(lambda number: [WAIT] if number else chunks("a")))
        with client(running) as api:
            stream = api.completions.create(model="m", prompt="Hi", n=2, stream=True)
            assert (first := next(stream).choices[0]).text == "a"
            assert (first.index, first.finish_reason) == (0, "length")
            stream.close()
        until(lambda: backend_of(running).aborted == 1)

        text = post(
            f"{serve(ScriptedBackend(letters)).url}/v1/completions", json=BODY | {"stream": True}
        ).text
        assert text.count("data: [DONE]\n\n") == 1
        assert text.endswith("data: [DONE]\n\n")

    def test_events_that_come_in_pieces_and_comments_stay_whole(self, serve: Serve) -> None:
        event = b'data: {"id": "x", "choices": [{"index": 0, "text": "\\u00e9"}]}\n\n'
        script = [
            TokenChunk(event[:9], 1),
            TokenChunk(event[9:] + b": alive\n\n", 1),
            TokenChunk(
                b'data: {"usage": {"prompt_tokens": 3, "completion_tokens": 2}}\n\ndata: [DONE]\n\n',
                0,
                "stop",
            ),
        ]
        text = post(f"{serve(script).url}/v1/completions", json=BODY | {"stream": True}).text
        *said, last, done, nothing = text.split("\n\n")
        assert Counter(said) == {
            'data: {"id":"x","choices":[{"index":0,"text":"é"}]}': 1,
            'data: {"id":"x","choices":[{"index":1,"text":"é"}]}': 1,
            ": alive": 2,
        }
        usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
        assert json.loads(last.removeprefix("data: "))["usage"] == usage
        assert (done, nothing) == ("data: [DONE]", "")

    def test_details_of_usage_are_added_up(self) -> None:
        def usage(tokens: int, cached: int | None) -> dict[str, Any]:
            return {
                "prompt_tokens": 10,
                "completion_tokens": tokens,
                "total_tokens": 0,
                "prompt_tokens_details": None if cached is None else {"cached_tokens": cached},
                "completion_tokens_details": {"reasoning_tokens": 1},
            }

        assert Shape(4, 2, 1).usage([usage(1, None), usage(2, 9), usage(3, 4), usage(4, 9)]) == {
            "prompt_tokens": 20,
            "completion_tokens": 10,
            "total_tokens": 30,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 4},
        }


BODY = {"model": "m", "prompt": "Hi", "n": 2}


class TestFaults:
    @pytest.mark.parametrize("stream", [False, True])
    def test_one_that_is_shed_is_the_answer_and_ends_the_others(self, serve: Serve, stream: bool) -> None:
        running = serve(ScriptedBackend(lambda number: [Overloaded("full", 2.0)] if number == 2 else [WAIT]))
        with client(running) as api, pytest.raises(openai.RateLimitError) as raised:
            api.chat.completions.create(model="m", messages=USER, n=3, stream=stream)
        assert raised.value.code == "rate_limit_exceeded"
        assert raised.value.response.headers["retry-after"] in ("2", "3")
        until(lambda: backend_of(running).aborted == 3)
        state = running.app.state
        assert (state.metrics.requests["shed"], state.metrics.arrivals, state.traffic.requests) == (3, 3, 0)

    def test_one_that_is_lost_in_mid_stream_ends_it(self) -> None:
        """One output has begun, the second is complete, and the third is lost later."""
        scripts = [[TokenChunk("a", 1), WAIT], chunks("b"), [1.0, ReplicaLost("gone")]]
        backend = ScriptedBackend(lambda number: scripts[number])
        said, app = ask_in_no_time(CONFIG, backend, "/v1/completions", BODY | {"n": 3, "stream": True})
        *events, error, done, _ = said.text.split("\n\n")
        choices = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
        assert [(each["index"], each["text"]) for each in choices] == [(0, "a"), (1, "b")]
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "replica_lost"
        assert (said.status_code, done) == (200, "data: [DONE]")
        assert (backend.aborted, app.state.metrics.requests["failed"]) == (2, 3)

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_client_that_leaves_ends_all(self, serve: Serve, stream: bool) -> None:
        running = serve([TokenChunk("a", 1), WAIT])
        connection = HTTPConnection("127.0.0.1", running.port)
        body = json.dumps(BODY | {"prompt": ["x", "y"], "stream": stream})
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        until(lambda: running.leaving.served.state.traffic.requests == 4)
        until(lambda: len(backend_of(running).parts) == 4)
        connection.close()
        until(lambda: backend_of(running).aborted == 4)
        until(lambda: running.app.state.metrics.requests["aborted"] == 4)
        assert running.app.state.traffic.requests == 0


class TestRoutes:
    @staticmethod
    def _routes(**fields: Any) -> Sequence[RouteRequest]:
        config = HeadwayConfig.model_validate(
            {"model": "m", "pools": {"mixed": {}}, "routing": {"profile": "slo"}}
        )
        document = b'{"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}'
        backend = ScriptedBackend([TokenChunk(document, 1, "stop")])
        headers = {"x-session-id": "s", "x-headway-criticality": "critical"}
        with serving(config, backend) as running:
            answer = post(f"{running.url}/v1/completions", json=BODY | fields, headers=headers)
        assert answer.status_code == 200
        return [each.route for each in backend.requests if each.route is not None]

    def test_each_output_is_a_request_of_the_same_kind_to_the_router(self) -> None:
        routes = self._routes(prompt=["12345678", "1234"], n=3, max_tokens=5)
        assert [each.input_tokens for each in routes] == [2, 2, 2, 1, 1, 1]
        assert len({each.request_id for each in routes}) == 6
        shared = {(each.max_tokens, each.tenant, each.session, each.critical) for each in routes}
        assert shared == {(5, "anonymous", "anonymous/s", True)}

    def test_beams_are_one_with_the_tokens_of_all(self) -> None:
        (route,) = self._routes(use_beam_search=True, n=4, max_tokens=5)
        assert (route.input_tokens, route.max_tokens) == (1, 20)


class TestCounts:
    def test_every_output_is_a_request_with_a_record_and_times_of_its_own(self, serve: Serve) -> None:
        running = serve(ScriptedBackend(letters))
        post(f"{running.url}/v1/completions", json=BODY | {"n": 3}, headers={"x-request-id": "mine"})
        metrics = running.app.state.metrics
        assert (metrics.arrivals, metrics.requests["ok"], metrics.output_tokens) == (3, 3, 6)
        assert (metrics.ttft.count, metrics.itl.count) == (3, 3), "gaps are those between one output's tokens"
        found = get(f"{running.url}/v1/requests/mine").json()["requests"]
        assert [(each["output"], each["output_tokens"]) for each in found] == [(0, 1), (1, 2), (2, 3)]
        assert {each["outcome"] for each in found} == {"ok"}
        assert found[0]["arrived_at"] == found[1]["arrived_at"]

    def test_every_output_takes_a_place(self, serve: Serve) -> None:
        running = serve([TokenChunk("a", 1), WAIT], max_requests=4)
        with client(running) as api:
            stream = api.completions.create(model="m", prompt="Hi", n=3, stream=True)
            next(stream)
            assert running.leaving.served.state.traffic.requests == 3
            with pytest.raises(openai.RateLimitError):
                api.completions.create(model="m", prompt="Hi", n=2)
            assert backend_of(running).begun == 3, "a call that finds no place for all begins none"
            stream.close()
        until(lambda: running.app.state.traffic.requests == 0)


@pytest.fixture(scope="module")
def simulated() -> Iterator[Running]:
    with serving(CONFIG, OneEngine(CONFIG)) as running:
        yield running


@pytest.mark.parametrize("stream", [False, True])
def test_a_simulated_engine_makes_each_output(simulated: Running, stream: bool) -> None:
    asked: dict[str, Any] = {"model": "m", "prompt": ["x", "y"], "n": 2, "max_tokens": 3, "logprobs": 1}
    with client(simulated) as api:
        if stream:
            *events, last = api.completions.create(**asked, stream=True, stream_options=USAGE)
            texts = ["", "", "", ""]
            for event in events:
                texts[event.choices[0].index] += event.choices[0].text
            usage = last.usage
        else:
            answer = api.completions.create(**asked)
            texts, usage = [each.text for each in answer.choices], answer.usage
            assert all(len(each.logprobs.tokens) == 3 for each in answer.choices)
    assert texts == [" [simulated] bravo charlie"] * 4
    assert (usage.prompt_tokens, usage.completion_tokens) == (2, 12)


FLOODED = load_config(
    None,
    {
        "model": "m",
        "engine.profile": "llama-3.1-70b_h100_tp4",
        "slo": {"ttft_ms": 2000.0, "itl_ms": 50.0},
        "pools": {"mixed": {"min_replicas": 1, "max_replicas": 1}},
        "gateway.max_requests": 100_000,
        "routing": {
            "profile": "slo",
            "prediction": {"learn": False},
            "tenants": {"*": {"per_user": True}, "anonymous/few": {}, "anonymous/flood": {}},
        },
    },
)


def kept_beside(n: int, outputs_rps: float, few_rps: float = 2.0, seconds: float = 15.0) -> float:
    """The share of a tenant's requests that keep their SLO beside a flood of calls with `n` outputs."""
    draw = np.random.default_rng(0)

    async def calls(app: GatewayApp, user: str, rate_rps: float, n: int) -> None:
        fields = {"model": "m", "prompt": [1] * 1000, "max_tokens": 100, "user": user, "n": n}
        async with asyncio.TaskGroup() as group:
            for gap_s in draw.exponential(1.0 / rate_rps, int(rate_rps * seconds)):
                await asyncio.sleep(gap_s)
                group.create_task(asked(app, fields))

    async def both() -> float:
        backend = RoutedEngines(FLOODED, replicas=1)
        app = make_app(FLOODED, backend, clock=asyncio.get_running_loop().time)
        work = asyncio.gather(calls(app, "few", few_rps, 1), calls(app, "flood", outputs_rps / n, n))
        await backend.until(work)
        judged = app.state.metrics.of_tenants.judged
        met, missed = (judged["anonymous/few", met] for met in (True, False))
        assert met + missed == int(few_rps * seconds)
        return met / (met + missed)

    found: float = run(both())
    return found


def test_a_flood_of_outputs_takes_no_more_from_a_tenant_than_as_many_requests() -> None:
    """A call of 16 outputs was charged and placed as one: 0.40 were kept, beside single requests 0.80."""
    assert kept_beside(16, 128.0) > 0.95 * kept_beside(1, 128.0) > 0.7
