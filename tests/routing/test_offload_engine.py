"""The estimate against the engine model: what a prompt is said to cost is what the engine loses."""

import pytest

from headway.engine import EngineRules, LiveEngine
from headway.planning.types import Role
from headway.routing.decide.offload import delays_at
from headway.routing.offload import Site
from tests.simulation.worlds import constant_profile

ITL_S, TOKEN_S, CHUNK = 0.01, 1e-4, 1_000
PROMPT, QUEUED = 8_000, 3_000
RULES = EngineRules(max_batch_size=64, chunk_tokens=CHUNK)


def finished(
    decoding: int, tokens_left: int, *, queued: bool = False, prompt: bool = False
) -> dict[str, float]:
    """When each request ends, or has its prompt computed for another replica; the prompt comes at 0."""
    engine = LiveEngine(constant_profile(ITL_S, TOKEN_S), RULES, Role.MIXED)
    for number in range(decoding):
        engine.submit(f"decoding {number}", 10, tokens_left, at_s=0.0, prefilled=True)
    if queued:
        engine.submit("queued", QUEUED, 500, at_s=0.0)
    if prompt:
        engine.submit("prompt", PROMPT, 500, at_s=0.0, prefill_only=True)
    ended = engine.advance(1_000.0)
    return {name: each.at_s for each in ended for name in (*each.finished, *each.left)}


@pytest.mark.parametrize(("decoding", "tokens_left"), [(1, 300), (12, 300), (12, 8), (12, 4), (12, 1)])
def test_decodes_lose_what_the_estimate_says(decoding: int, tokens_left: int) -> None:
    without, with_it = (finished(decoding, tokens_left, prompt=prompt) for prompt in (False, True))
    lost_s = sum(with_it[name] - without[name] for name in without)
    site = Site(
        uncached_tokens=PROMPT,
        prefill_s=PROMPT * TOKEN_S,
        running=decoding,
        remaining_tokens=tokens_left,
        iteration_s=ITL_S,
    )
    assert delays_at(site, CHUNK).decode_s == pytest.approx(lost_s)


@pytest.mark.parametrize("decoding", [1, 12])
def test_the_prompt_is_done_when_the_estimate_says(decoding: int) -> None:
    queue_s = QUEUED * TOKEN_S + QUEUED / CHUNK * ITL_S
    site = Site(
        uncached_tokens=PROMPT,
        queue_s=queue_s,
        prefill_s=PROMPT * TOKEN_S,
        iteration_s=ITL_S,
        running=decoding,
    )
    done_s = finished(decoding, 300, queued=True, prompt=True)["prompt"]
    assert delays_at(site, CHUNK).own_s == pytest.approx(done_s)


def test_who_comes_behind_waits_as_long_as_the_estimate_says() -> None:
    """One request at a time, at every moment of the queue and of the prompt: their mean wait is B / λ."""
    queue_s, prefill_s = QUEUED * TOKEN_S, PROMPT * TOKEN_S
    moments = [(place + 0.5) / 1000 * (queue_s + prefill_s) for place in range(1000)]
    waits = [max(queue_s + prefill_s - moment, 0.0) - max(queue_s - moment, 0.0) for moment in moments]
    site = Site(uncached_tokens=PROMPT, queue_s=queue_s, prefill_s=prefill_s, arrival_rps=1.0)
    expected_s = sum(waits) / len(waits) * (queue_s + prefill_s)
    assert delays_at(site, CHUNK).behind_s == pytest.approx(expected_s, rel=1e-3)
