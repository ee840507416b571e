"""Mixed replicas that share requests: the model on a driver's clock takes the compiled kernel's times.

Two replicas; each request is computed on one and decodes on the same or on the other, as a script says.
"""

from dataclasses import dataclass, field
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.engine import EngineRules, LiveEngine
from headway.planning.types import Role
from headway.routing.types import Placement
from headway.simulation.scenario import ScenarioRouter
from tests.engine.stepping import Seen
from tests.simulation.routers import Scripted, place
from tests.simulation.worlds import ArrayTrace, growing_prompts, roofline_profile, run, scenario

BLOCK = 128
REACHED_S = 1e-6
TRANSFER = {"transfer_latency_s": 0.003, "kv_bytes_per_token": 1.0, "transfer_bytes_per_s": 1e6}


def scripted(places: list[tuple[int, int]]) -> ScenarioRouter:
    """A router that places request n on the replicas `places[n]`: prefill, decode."""

    def answer(router: Scripted, event: str, _: float, name: str) -> list[Placement] | None:
        replicas = router.ready[Role.MIXED]
        return [place(name, *(replicas[at] for at in places[int(name)]))] if event == "submit" else None

    return ScenarioRouter(name="script", make=lambda _: Scripted(answer))


@dataclass
class Pair:
    """Two live replicas and the KV that travels between them."""

    profile: object
    rules: EngineRules
    trace: ArrayTrace
    places: list[tuple[int, int]]
    seen: Seen = field(default_factory=Seen)

    def __post_init__(self) -> None:
        self.replicas = [LiveEngine(self.profile, self.rules, Role.MIXED) for _ in range(2)]

    def drive(self) -> Seen:
        for number, at_s in enumerate(self.trace.arrival_s.tolist()):
            self.until(at_s)
            prefill, decode = self.places[number]
            self.submit(prefill, number, at_s, prefill_only=prefill != decode)
        self.until(inf)
        return self.seen

    def until(self, stop_s: float) -> None:
        while True:
            due_s, first = min(
                (inf if (due := replica.next_boundary_s()) is None else due, number)
                for number, replica in enumerate(self.replicas)
            )
            if due_s >= stop_s:
                return
            for boundary in self.replicas[first].advance(due_s):
                self.seen.take([boundary])
                for name in boundary.left:
                    self.send(int(name), boundary.at_s)

    def send(self, number: int, at_s: float) -> None:
        decode = self.places[number][1]
        missing = self.replicas[decode].missing_tokens(
            int(self.trace.input_tokens[number]), self.blocks(number)
        )
        self.submit(decode, number, at_s + self.rules.transfer_s(missing), prefilled=True)

    def submit(self, replica: int, number: int, at_s: float, **part: bool) -> None:
        tokens = int(self.trace.input_tokens[number]), int(self.trace.output_tokens[number])
        self.replicas[replica].submit(str(number), *tokens, at_s=at_s, blocks=self.blocks(number), **part)

    def blocks(self, number: int) -> list[int]:
        return self.trace.prompts[number]


def shared_trace(seed: int, count: int, rate_rps: float) -> tuple[ArrayTrace, list[tuple[int, int]]]:
    """Conversations whose turns go to any replicas."""
    generator = np.random.default_rng(seed)
    prompts = [prompt[:15] for prompt in growing_prompts(generator, count, 5)]
    tokens = np.array([BLOCK * len(prompt) - int(generator.integers(0, BLOCK)) for prompt in prompts])
    arrival_s = np.cumsum(generator.exponential(1 / rate_rps, count))
    trace = ArrayTrace(arrival_s, tokens, 1 + generator.integers(0, 90, count), prompts)
    return trace, [tuple(place) for place in generator.integers(0, 2, (count, 2)).tolist()]


def assert_as_compiled(
    trace: ArrayTrace, places: list[tuple[int, int]], rules: EngineRules, capacity: int
) -> None:
    profile = roofline_profile(capacity=capacity)
    _, records = run(scenario(profile, {Role.MIXED: 2}, engine=rules, routing=scripted(places)), trace)
    pair = Pair(profile, rules, trace, places)
    seen, count = pair.drive(), len(places)
    assert len(records) == count
    for name, times in (
        ("prefill_finished_s", seen.prefilled_s),
        ("first_token_s", seen.first_s),
        ("finished_s", seen.finished_s),
    ):
        live_s = np.array([times[str(number)] for number in range(count)])
        assert np.abs(records[name] - live_s).max() < REACHED_S, name
    assert seen.tokens == {str(n): osl for n, osl in enumerate(trace.output_tokens.tolist())}
    assert sum(replica.external_tokens for replica in pair.replicas) == records["external_tokens"].sum()


@pytest.mark.parametrize("chunk_tokens", [0, 256, 2048], ids=["whole", "256", "2048"])
@pytest.mark.parametrize("cached_blocks", [0, 20, 2_000])
@pytest.mark.parametrize(
    ("rate_rps", "max_batch", "capacity"),
    [(5.0, 64, 100_000), (40.0, 64, 100_000), (40.0, 4, 100_000), (40.0, 64, 5_000)],
    ids=["light", "busy", "small batch", "little KV"],
)
def test_shared_requests_take_the_compiled_kernels_times(
    rate_rps, max_batch, capacity, cached_blocks, chunk_tokens
):
    trace, places = shared_trace(seed=5, count=250, rate_rps=rate_rps)
    rules = EngineRules(
        max_batch_size=max_batch,
        chunk_tokens=chunk_tokens,
        prefix_cache_tokens=cached_blocks * BLOCK,
        block_tokens=BLOCK,
        **TRANSFER,
    )
    assert_as_compiled(trace, places, rules, capacity)


@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 25),
    rate_rps=st.floats(1.0, 80.0),
    max_batch=st.integers(1, 8),
    chunk_tokens=st.sampled_from([0, 64, 300, 2048]),
    cached_blocks=st.sampled_from([0, 5, 1_000]),
)
def test_small_shared_traces_equal_the_compiled_kernel(
    seed, count, rate_rps, max_batch, chunk_tokens, cached_blocks
):
    trace, places = shared_trace(seed, count, rate_rps)
    rules = EngineRules(
        max_batch_size=max_batch,
        chunk_tokens=chunk_tokens,
        prefix_cache_tokens=cached_blocks * BLOCK,
        block_tokens=BLOCK,
        **TRANSFER,
    )
    assert_as_compiled(trace, places, rules, capacity=2_500)
