"""Prefill dies by `kill -9`, replica or engine: right answers or clear errors, and it comes back."""

import os
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from openai import APIStatusError, OpenAI
from ray import serve

from serve_apps.engines.protocol import EngineRequest, KvHandle
from tests.ray.clusters import replicas, wait_until
from tests.vllm.served import APP, NAME, Served, engine_of, prefill_pid

TOKENS = 200
PROMPT = "Queues grow when nobody looks. " * 30
CLEAR = {"replica_lost", "not_ready", "timeout"}
START_S = 240.0
"""Seconds that a replica may take to come back on a busy machine."""


def answer(client: OpenAI, prompt: str) -> str | None:
    """The whole text; None where a clear error came instead."""
    try:
        made = client.completions.create(model=NAME, prompt=prompt, max_tokens=TOKENS, temperature=0)
    except APIStatusError as error:
        if error.code not in CLEAR:
            raise
        return None
    return made.choices[0].text


def is_back(killed: int) -> bool:
    return [one["pid"] for one in replicas(APP, "Prefill")] not in ([], [killed])


def prefilled(request: EngineRequest) -> KvHandle:
    handle = serve.get_deployment_handle("Prefill", APP)
    kv: KvHandle = handle.prefill.remote(request).result(timeout_s=60)
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
    wait_until(lambda: is_back(killed), START_S)
    # Other tokens in front, so that the decode side's own prefix cache does not answer.
    other = [0, 5, *ids[1:]]
    decoded(asked("other", other), prefilled(asked("other", other)))
    assert system.stats("Decode").external_tokens > external
    assert decoded(asked("again", ids), prefilled(asked("again", ids))) == text


def test_kill_nine_under_load_ends_in_right_answers_or_clear_errors(system: Served) -> None:
    prompts = [f"{number}. {PROMPT}" for number in range(8)]
    with system.client() as client, ThreadPoolExecutor(len(prompts)) as threads:
        pending = [threads.submit(answer, client, prompt) for prompt in prompts]
        wait_until(lambda: system.stats("Decode").running > 0)
        killed = prefill_pid()
        engine = engine_of(killed)
        os.kill(killed, signal.SIGKILL)
        got = [one.result(timeout=300) for one in pending]
        wait_until(lambda: is_back(killed), START_S)
        right = [answer(client, prompt) for prompt in prompts]
    assert None not in right
    assert all(text in (None, expected) for text, expected in zip(got, right, strict=True))
    wait_until(lambda: system.stats("Decode").kv_usage == 0.0)
    assert not Path(f"/proc/{engine}").exists()
