"""One prefill and one decode replica of real vLLM behind the gateway: the KV travels, the answer is right."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from time import sleep
from urllib.request import urlopen

import pytest
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from tests.ray.clusters import wait_until
from tests.vllm.served import NAME, Served, engine_of, prefill_pid, said_by_one_engine

TOKENS = 24
PROMPTS = [f"{number}. " + "The planner reads the load and counts. " * (number + 1) for number in range(10)]


@pytest.fixture(scope="module")
def expected(model: Path, system: Served) -> Iterator[list[str]]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as elsewhere:
        yield elsewhere.submit(said_by_one_engine, str(model), PROMPTS, TOKENS).result(timeout=300)


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


def test_the_outputs_are_those_of_one_engine_and_the_kv_came_from_the_other_side(
    system: Served, expected: list[str]
) -> None:
    with system.client() as client:
        answers = [streamed(client, prompt) for prompt in PROMPTS]
    assert [text for text, _, _ in answers] == expected
    assert len(set(expected)) == len(PROMPTS)
    assert {reason for _, reason, _ in answers} <= {"length", "stop"}
    asked = sum(tokens for _, _, tokens in answers)
    decode, prefill = system.stats("Decode"), system.stats("Prefill")
    assert (prefill.prompt_tokens, prefill.external_tokens) == (asked, 0)
    assert decode.prompt_tokens == asked
    assert 0 < decode.external_tokens <= asked
    assert decode.external_tokens + decode.cached_tokens == asked


def test_metrics_under_vllms_names_count_what_engines_and_gateway_did(system: Served) -> None:
    def counted() -> Counter[str]:
        """Totals by vLLM's names; those of replicas are the decode side's."""
        text = urlopen(f"{system.url}/metrics", timeout=30).read().decode()
        totals = Counter[str]()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.labels.get("role") in (None, "decode"):
                    totals[sample.name.removeprefix("vllm:")] += int(sample.value)
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


def test_a_chat_goes_through_the_models_template(system: Served) -> None:
    with system.client() as client:
        answer = client.chat.completions.create(
            model=NAME, messages=[{"role": "user", "content": "Hi"}], max_tokens=3, temperature=0
        )
    # <s> <user> Hi newline <assistant>, in the tokens of the model's own tokenizer.
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 18
    assert answer.usage.completion_tokens == 3


def test_a_client_that_leaves_frees_the_kv_on_both_sides(system: Served) -> None:
    async def leave() -> None:
        from openai import AsyncOpenAI

        async with AsyncOpenAI(base_url=f"{system.url}/v1", api_key="none", max_retries=0) as client:
            stream = await client.completions.create(
                model=NAME, prompt="Why? " * 100, max_tokens=1000, stream=True
            )
            await anext(aiter(stream))
            await asyncio.to_thread(wait_until, lambda: system.stats("Decode").kv_usage > 0)
            await stream.close()

    asyncio.run(leave())
    for side in ("Prefill", "Decode"):
        wait_until(lambda side=side: is_empty(system, side), 60)


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
