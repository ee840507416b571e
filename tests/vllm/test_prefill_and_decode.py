"""The shipped Serve file with vLLM: one prefill and one decode replica behind the gateway.

The KV travels, the answer is right. A decode replica comes and goes. At the end prefill dies by `kill -9`,
engine or replica: right answers or clear errors, and it comes back.
"""

import asyncio
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from urllib.request import urlopen

import pytest
from openai import APIStatusError, BadRequestError, OpenAI
from prometheus_client.parser import text_string_to_metric_families
from ray import serve

from serve_apps.engines.protocol import EngineRequest, KvHandle
from tests.compatibility import hold, outcomes, through_gateway
from tests.engines.engine_cases import collect, text_of
from tests.otlp import Collector, Seen
from tests.patience import PATIENCE_S
from tests.ray.clusters import replicas, running_replicas, scale, wait_until
from tests.vllm.one_vllm import Mixed
from tests.vllm.served import (
    APP,
    NAME,
    STARTED_WITHIN_S,
    Served,
    engine_of,
    fields_of_vllm,
    prefill_pid,
)

TOKENS = 24
PROMPTS = [f"{number}. " + "The planner reads the load and counts. " * (number + 1) for number in range(10)]
LONG_TOKENS = 200
LONG_PROMPT = "Queues grow when nobody looks. " * 30
CLEAR = {"replica_lost", "not_ready", "timeout"}
TRACE, ABOVE = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
COMPLETION_TOKENS = "gen_ai.usage.completion_tokens"


def said_by(mixed: Mixed, prompts: Sequence[str]) -> list[str]:
    """The greedy outputs of one engine, which reads text by itself."""

    async def say(prompt: str) -> str:
        request = EngineRequest(
            request_id=prompt,
            model=NAME,
            prompt=prompt,
            input_tokens=1,
            max_tokens=TOKENS,
            sampling={"temperature": 0.0},
        )
        return text_of(await collect(mixed.engine.decode(request, None)))

    return [mixed.run(say(prompt)) for prompt in prompts]


def streamed(client: OpenAI, prompt: str) -> tuple[str, str | None, int]:
    events = client.completions.create(
        model=NAME,
        prompt=prompt,
        max_tokens=TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    text, reason, prompt_tokens = "", None, 0
    for event in events:
        for choice in event.choices:
            text, reason = text + choice.text, choice.finish_reason or reason
        prompt_tokens = event.usage.prompt_tokens if event.usage else prompt_tokens
    return text, reason, prompt_tokens


@pytest.mark.essential
def test_the_outputs_are_those_of_one_engine_and_the_kv_came_from_the_other_side(
    system: Served, mixed: Mixed
) -> None:
    decoded, prefilled = system.stats("Decode"), system.stats("Prefill")
    with system.client() as client:
        answers = [streamed(client, prompt) for prompt in PROMPTS]
    expected = said_by(mixed, PROMPTS)
    assert [text for text, _, _ in answers] == expected
    assert len(set(expected)) == len(PROMPTS)
    assert {reason for _, reason, _ in answers} <= {"length", "stop"}
    asked = sum(tokens for _, _, tokens in answers)
    decode, prefill = system.stats("Decode"), system.stats("Prefill")
    assert prefill.prompt_tokens - prefilled.prompt_tokens == asked
    assert prefill.external_tokens == 0
    assert decode.prompt_tokens - decoded.prompt_tokens == asked
    external = decode.external_tokens - decoded.external_tokens
    assert 0 < external <= asked
    assert external + decode.cached_tokens - decoded.cached_tokens == asked


@pytest.mark.essential
def test_metrics_under_vllms_names_count_what_engines_and_gateway_did(system: Served) -> None:
    def counted() -> Counter[str]:
        """Totals by vLLM's names; those of replicas are the decode side's."""
        text = urlopen(f"{system.url}/metrics", timeout=PATIENCE_S).read().decode()
        totals = Counter[str]()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.name.removeprefix("vllm:")
                if name != sample.name and sample.labels.get("role") in (None, "decode"):
                    totals[name] += int(sample.value)
        return totals

    def settled() -> Counter[str]:
        """When the replica has said to the gateway what it says to us."""
        said = system.stats("Decode").output_tokens
        wait_until(lambda: counted()["generation_tokens_total"] == said)
        return counted()

    before = settled()
    with system.client() as client:
        made = client.completions.create(
            model=NAME, prompt="Count me. " * 9, max_tokens=TOKENS, temperature=0
        )
    assert made.usage is not None
    wait_until(lambda: counted()["generation_tokens_total"] > before["generation_tokens_total"])
    after = settled()
    change = after - before
    tokens = made.usage.completion_tokens
    assert change["generation_tokens_total"] == change["request_generation_tokens_sum"] == tokens
    assert change["prefix_cache_queries_total"] == made.usage.prompt_tokens
    assert change["external_prefix_cache_hits_total"] > 0
    assert change["request_prompt_tokens_sum"] == made.usage.prompt_tokens
    assert change["request_success_total"] == change["time_to_first_token_seconds_count"] == 1
    assert change["inter_token_latency_seconds_count"] == tokens - 1


def test_vllms_own_spans_are_part_of_the_requests_trace(system: Served, collector: Collector) -> None:
    with system.client() as client:
        said = {"model": NAME, "prompt": LONG_PROMPT, "max_tokens": 3}
        client.completions.create(**said)  # type: ignore[call-overload]
        client.completions.create(
            **said,  # type: ignore[call-overload]
            extra_headers={"traceparent": f"00-{TRACE}-{ABOVE}-01", "x-request-id": "traced"},
        )

    def ours() -> list[Seen]:
        """vLLM's server has spans of its own, too."""
        return [span for span in collector.of(TRACE) if span.service != "vllm" or span.name == "llm_request"]

    # The Router chooses both replicas at once: one span of `route`.
    wait_until(lambda: len(ours()) == 9)
    spans = {(span.service, span.name): span for span in ours()}
    of_gateway = {name: spans["headway-gateway", name] for name in ("route", "prefill", "decode")}
    of_replica = {name: spans[f"headway-{name}", name] for name in ("prefill", "decode")}
    for name, span in of_replica.items():
        assert span.parent == of_gateway[name].span
    assert spans["headway-decode", "kv_transfer"].parent == of_replica["decode"].span
    own = {span.parent: span for span in collector.of(TRACE) if span.name == "llm_request"}
    assert own.keys() == {span.span for span in of_replica.values()}
    assert {span.service for span in own.values()} == {"vllm"}
    tokens = {name: own[span.span].attributes[COMPLETION_TOKENS] for name, span in of_replica.items()}
    assert tokens == {"prefill": 1, "decode": 3}
    answered = [span for span in collector.spans if span.name in ("llm_request", "POST /v1/completions")]
    assert {span.trace for span in answered} == {TRACE}, "what is not sampled is exported by nobody"
    (found,) = json.load(urlopen(f"{system.url}/v1/requests/traced", timeout=PATIENCE_S))["requests"]
    prefill, decode = (step["engine"] for step in found["steps"] if step["name"] != "route")
    assert 0 < prefill["begun_s"] < prefill["ended_s"]
    assert 0 < decode["transferred_s"] <= decode["begun_s"] < decode["first_token_s"] < decode["ended_s"]


def test_both_sides_serve_what_vllm_serves(system: Served) -> None:
    question = [{"role": "user", "content": "How many queues are there? " * 9}]
    before = system.stats("Decode").external_tokens
    with system.client() as client:
        chosen = client.chat.completions.create(
            model=NAME,
            messages=question,  # type: ignore[arg-type]
            max_tokens=40,
            logprobs=True,
            extra_body={"structured_outputs": {"choice": ["twelve", "none"]}},
        )
        said = client.responses.create(model=NAME, input="How many? " * 20, max_output_tokens=4)
        several = client.completions.create(
            model=NAME, prompt=["How? " * 20, "Why? " * 20], n=2, max_tokens=4, temperature=1.0, seed=7
        )
        with pytest.raises(BadRequestError, match="separate prefill and decode pools"):
            client.completions.create(
                model=NAME, prompt="How?", n=2, max_tokens=4, extra_body={"use_beam_search": True}
            )
        with pytest.raises(BadRequestError, match="temperature"):
            client.chat.completions.create(model=NAME, messages=question, temperature=-1)  # type: ignore[call-overload]
    assert chosen.choices[0].message.content in ("twelve", "none")
    assert chosen.choices[0].logprobs is not None
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert several.usage is not None
    assert several.usage.completion_tokens == 16
    assert said.usage is not None
    assert said.usage.output_tokens == 4
    assert system.stats("Decode").external_tokens - before > 100


@pytest.mark.essential
def test_an_adapter_computes_the_prompt_on_one_side_and_goes_on_on_the_other(system: Served) -> None:
    with system.client() as client:
        external = system.stats("Decode").external_tokens
        said = {"prompt": LONG_PROMPT, "max_tokens": TOKENS, "temperature": 0.0}
        plain, loud, again = (
            client.completions.create(model=name, **said).choices[0].text for name in (NAME, "loud", "loud")
        )
    assert plain != loud == again
    assert system.stats("Decode").external_tokens > external


def test_what_is_taken_is_what_the_page_says(system: Served) -> None:
    hold("vLLM, split", outcomes(system.url, NAME, through_gateway(fields_of_vllm())))


@pytest.mark.essential
def test_a_client_that_leaves_frees_the_kv_on_both_sides(system: Served) -> None:
    async def leave() -> None:
        from openai import AsyncOpenAI

        async with AsyncOpenAI(base_url=f"{system.url}/v1", api_key="none", max_retries=0) as client:
            stream = await client.completions.create(
                model=NAME,
                prompt="Why? " * 100,
                max_tokens=1500,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            await anext(aiter(stream))
            await asyncio.to_thread(wait_until, lambda: system.stats("Decode").kv_usage > 0)
            await stream.close()

    asyncio.run(leave())
    for side in ("Prefill", "Decode"):
        wait_until(lambda side=side: is_empty(system, side))


@contextmanager
def load(client: OpenAI, clients: int) -> Iterator[list[int]]:
    """Clients that send one request after the other, with time for others between: the tokens of answers."""
    over, counts = threading.Event(), list[int]()

    def ask(number: int) -> None:
        while not over.wait(0.3):
            prompt = f"{number}. {len(counts)} The planner reads the load."
            made = client.completions.create(model=NAME, prompt=prompt, max_tokens=TOKENS, temperature=0)
            assert made.usage is not None
            assert made.choices[0].finish_reason in {"stop", "length"}
            counts.append(made.usage.completion_tokens)

    with ThreadPoolExecutor(clients) as threads:
        pending = [threads.submit(ask, number) for number in range(clients)]
        try:
            yield counts
        finally:
            over.set()
        for one in pending:
            one.result(timeout=PATIENCE_S)


def test_decode_replicas_come_and_go_under_load_and_no_request_fails(system: Served) -> None:
    with system.client() as client, load(client, 3) as counts:
        scale(APP, "Decode", 2)
        wait_until(lambda: running_replicas(APP, "Decode") == 2, STARTED_WITHIN_S)
        wait_until(lambda: all(one.external_tokens > 0 for one in system.all_stats("Decode").values()))
        scale(APP, "Decode", 1)
        wait_until(lambda: running_replicas(APP, "Decode") == 1)
        here = len(counts)
        wait_until(lambda: len(counts) >= here + 6)
    assert min(counts) >= 1


def test_an_idle_engine_leaves_its_core_to_others(system: Served) -> None:
    engine = engine_of(prefill_pid())
    wait_until(lambda: is_empty(system, "Prefill"))
    before_s = cpu_seconds(engine)
    sleep(3)
    assert cpu_seconds(engine) - before_s < 0.6


def cpu_seconds(pid: int) -> float:
    """What all threads of the process have taken so far."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def is_empty(system: Served, side: str) -> bool:
    stats = system.stats(side)
    return (stats.running, stats.waiting, stats.kv_usage) == (0, 0, 0.0)


def answer(client: OpenAI, prompt: str) -> str | None:
    """The whole text; None where a clear error came instead."""
    try:
        made = client.completions.create(model=NAME, prompt=prompt, max_tokens=LONG_TOKENS, temperature=0)
    except APIStatusError as error:
        if error.code not in CLEAR:
            raise
        return None
    return made.choices[0].text


def is_back(killed: int) -> bool:
    return [one["pid"] for one in replicas(APP, "Prefill")] not in ([], [killed])


def prefilled(request: EngineRequest) -> KvHandle:
    handle = serve.get_deployment_handle("Prefill", APP)
    kv: KvHandle = handle.prefill.remote(request).result(timeout_s=PATIENCE_S)
    return kv


def decoded(request: EngineRequest, kv: KvHandle) -> str:
    handle = serve.get_deployment_handle("Decode", APP).options(stream=True)
    return "".join(chunk.text for chunk in handle.decode.remote(request, kv))


def asked(name: str, ids: Sequence[int]) -> EngineRequest:
    return EngineRequest(
        request_id=name,
        model=NAME,
        prompt=ids,
        input_tokens=len(ids),
        max_tokens=20,
        sampling={"temperature": 0.0},
    )


def test_a_dead_engine_is_replaced_and_kv_that_died_with_it_is_computed_again(system: Served) -> None:
    ids = [0, *(2 + 7 * number % 380 for number in range(100))]
    lost = prefilled(asked("lost", ids))
    killed = prefill_pid()
    os.kill(engine_of(killed), signal.SIGKILL)
    text = decoded(asked("lost", ids), lost)
    external = system.stats("Decode").external_tokens
    wait_until(lambda: is_back(killed), STARTED_WITHIN_S)
    # Other tokens in front, so that the decode side's own prefix cache does not answer.
    other = [0, 5, *ids[1:]]
    decoded(asked("other", other), prefilled(asked("other", other)))
    assert system.stats("Decode").external_tokens > external
    assert decoded(asked("again", ids), prefilled(asked("again", ids))) == text


def test_kill_nine_under_load_ends_in_right_answers_or_clear_errors(system: Served) -> None:
    prompts = [f"{number}. {LONG_PROMPT}" for number in range(8)]
    with system.client() as client, ThreadPoolExecutor(len(prompts)) as threads:
        pending = [threads.submit(answer, client, prompt) for prompt in prompts]
        wait_until(lambda: system.stats("Decode").running > 0)
        killed = prefill_pid()
        engine = engine_of(killed)
        os.kill(killed, signal.SIGKILL)
        got = [one.result(timeout=PATIENCE_S) for one in pending]
        wait_until(lambda: is_back(killed), STARTED_WITHIN_S)
        right = [answer(client, prompt) for prompt in prompts]
    assert None not in right
    assert all(text in (None, expected) for text, expected in zip(got, right, strict=True))
    wait_until(lambda: system.stats("Decode").kv_usage == 0.0)
    assert not Path(f"/proc/{engine}").exists()
