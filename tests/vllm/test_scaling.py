"""The shipped Serve file with vLLM: the planner scales decode 1 -> 2 -> 1 under load, and no request fails.

The profile is another model's, slowed down: for the planner one decode replica sustains some 50 tokens/s
under the ITL target, whatever the engines really do. Load comes from several clients, some 180 tokens/s where
the cores can, half of that while a replica loads; then from one, 20 or 40. Near the limit the reference
policy would ask for a replica, and for none, every three seconds.
"""

import threading
import time
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
    "engine.time_scale": 0.015,
    "slo.ttft_ms": 13_000.0,
    "slo.itl_ms": 450.0,
    "engine.refinement.enabled": False,
    "planner.adjustment_interval_s": 3.0,
    "pools.prefill.max_replicas": 1,
    "pools.decode.max_replicas": 2,
}
"""Without corrections, which would soon find the engines faster than that profile."""
CLIENTS, EVERY_S, TOKENS = 6, 2.0, 60
START_S = 420.0


@pytest.fixture(scope="module")
def planned(ray_cluster: str, model: Path) -> Iterator[Served]:
    with served_by_file(model, **PLANNED) as running:
        yield running


@contextmanager
def load(client: OpenAI, clients: int, counts: list[int], every_s: float = EVERY_S) -> Iterator[None]:
    """Each client asks so often, late answers permitting; `counts` gets the output tokens of every answer."""
    over = threading.Event()

    def ask(number: int) -> None:
        while not over.is_set():
            begun_s = time.monotonic()
            prompt = f"{number}. {len(counts)} The planner reads the load."
            made = client.completions.create(model=NAME, prompt=prompt, max_tokens=TOKENS, temperature=0)
            assert made.usage is not None
            assert made.choices[0].finish_reason in {"stop", "length"}
            counts.append(made.usage.completion_tokens)
            over.wait(max(begun_s + every_s - time.monotonic(), 0.0))

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
        with load(client, 1, counts, every_s=3.0):
            wait_until(lambda: running_replicas(APP, "Decode") == 1)
    assert min(counts) >= 1
