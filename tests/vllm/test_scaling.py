"""The shipped Serve file with vLLM: the planner scales decode 1 -> 2 -> 1 under load, and no request fails.

The profile is another model's, slowed down: for the planner one decode replica sustains some 100 tokens/s
under the ITL target, whatever the engines really do. Load comes from several clients at once, for as long as
it takes a replica to load; then from one, at most 60 tokens in two seconds.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from openai import OpenAI

from tests.ray.clusters import running_replicas, wait_until
from tests.ray.live_system import SLOW
from tests.vllm.served import APP, NAME, Served, served_by_file

PLANNED = {
    **{key: value for key, value in SLOW.items() if key != "engine.start_up_s"},
    "engine.refinement.enabled": False,
    "planner.adjustment_interval_s": 3.0,
    "pools.prefill.max_replicas": 1,
    "pools.decode.max_replicas": 2,
}
"""Without corrections, which would soon find the engines faster than that profile."""
CLIENTS, TOKENS = 6, 60
START_S = 240.0


@pytest.fixture(scope="module")
def planned(ray_cluster: str, model: Path) -> Iterator[Served]:
    with served_by_file(model, **PLANNED) as running:
        yield running


@contextmanager
def load(client: OpenAI, clients: int, counts: list[int], pause_s: float = 0.0) -> Iterator[None]:
    """Each client asks again that long after an answer; `counts` gets the output tokens of every answer."""
    over = threading.Event()

    def ask(number: int) -> None:
        while not over.is_set():
            prompt = f"{number}. {len(counts)} The planner reads the load."
            made = client.completions.create(model=NAME, prompt=prompt, max_tokens=TOKENS, temperature=0)
            assert made.usage is not None
            assert made.choices[0].finish_reason in {"stop", "length"}
            counts.append(made.usage.completion_tokens)
            over.wait(pause_s)

    with ThreadPoolExecutor(clients) as threads:
        pending = [threads.submit(ask, number) for number in range(clients)]
        try:
            yield
        finally:
            over.set()
        for one in pending:
            one.result(timeout=120)


def test_decode_goes_from_one_to_two_and_back_and_no_request_fails(planned: Served) -> None:
    assert running_replicas(APP, "Decode") == 1
    counts: list[int] = []
    with planned.client() as client:
        with load(client, CLIENTS, counts):
            wait_until(lambda: running_replicas(APP, "Decode") == 2, START_S)
            here = len(counts)
            wait_until(lambda: len(counts) >= here + 4 * CLIENTS)
        with load(client, 1, counts, pause_s=2.0):
            wait_until(lambda: running_replicas(APP, "Decode") == 1)
    assert min(counts) >= 1
