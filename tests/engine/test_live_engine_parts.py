"""A mixed replica that does parts of requests: prompts for other replicas, decodes of prompts from them.

An iteration takes 10 ms for a batch and 0.1 ms for each prompt token that it carries.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.engine import EngineRules, LiveEngine
from headway.planning.types import Role
from tests.engine.stepping import Seen, steps_of
from tests.simulation.worlds import constant_profile, roofline_profile

TEN_MS = constant_profile(0.01, 1e-4, capacity=1_000)


def mixed_of(**rules) -> LiveEngine:
    return steps_of(TEN_MS, Role.MIXED, **{"chunk_tokens": 100} | rules)


def seen_by(engine, until_s=1e9) -> Seen:
    seen = Seen()
    seen.take(engine.advance(until_s))
    return seen


def test_a_prefilled_request_does_not_wait_for_the_prompt_under_way():
    engine = mixed_of()
    engine.submit("prompt", 300, 2, at_s=0.0)
    engine.submit("next prompt", 100, 1, at_s=0.0)
    engine.submit("came", 50, 3, prefilled=True, at_s=0.005)
    seen = seen_by(engine)
    # Chunks end at 10 ms, then beside the batch at 30, 50 and 70 ms, then the rest decodes.
    assert seen.first_s == pytest.approx({"came": 0.03, "prompt": 0.05, "next prompt": 0.07})
    assert seen.finished_s == pytest.approx({"came": 0.07, "prompt": 0.07, "next prompt": 0.07})
    assert seen.prefilled_s == pytest.approx({"prompt": 0.05, "next prompt": 0.07})


def test_whole_prompts_hold_a_prefilled_request_up_for_one_iteration():
    engine = mixed_of(chunk_tokens=0)
    for name in ("one", "two"):
        engine.submit(name, 300, 1, at_s=0.0)
    engine.submit("came", 50, 2, prefilled=True, at_s=0.01)
    assert seen_by(engine).first_s == pytest.approx({"one": 0.03, "came": 0.07, "two": 0.07})


def test_an_idle_replica_starts_a_prefilled_request_at_once():
    engine = mixed_of()
    engine.submit("came", 50, 3, prefilled=True, at_s=1.0)
    seen = seen_by(engine)
    assert seen.first_s == pytest.approx({"came": 1.01})
    assert seen.finished_s == pytest.approx({"came": 1.03})


def test_a_prompt_for_another_replica_leaves_without_a_token():
    engine = mixed_of()
    engine.submit("goes", 150, 40, prefill_only=True, at_s=0.0)
    engine.submit("stays", 150, 1, at_s=0.0)
    boundaries = engine.advance(1e9)
    assert [(end.prefilled, end.left, end.emitted, end.finished) for end in boundaries] == [
        ((), (), (), ()),
        (("goes",), ("goes",), (), ()),
        (("stays",), (), ("stays",), ("stays",)),
    ]
    assert [end.at_s for end in boundaries] == pytest.approx([0.01, 0.02, 0.03])
    assert (engine.running, engine.waiting, engine.next_boundary_s()) == (0, 0, None)


def test_a_prompt_for_another_replica_needs_kv_for_itself_only():
    engine = mixed_of()
    engine.submit("decodes", 600, 100, prefilled=True, at_s=0.0)
    engine.submit("goes", 300, 500, prefill_only=True, at_s=0.0)
    engine.submit("stays", 100, 100, at_s=0.0)
    seen = seen_by(engine)
    assert seen.prefilled_s["goes"] == pytest.approx(0.06)
    # Once that KV is free again there is room for 200 more.
    assert seen.prefilled_s["stays"] == pytest.approx(0.08)


def test_a_prompt_without_room_does_not_hold_prefilled_requests_up():
    engine = mixed_of()
    engine.submit("decodes", 300, 10, prefilled=True, at_s=0.0)
    engine.submit("large prompt", 600, 200, at_s=0.0)
    engine.submit("came", 500, 10, prefilled=True, at_s=0.005)
    engine.advance(0.0)
    assert (engine.running, engine.waiting) == (1, 2)
    seen = seen_by(engine)
    assert seen.first_s["came"] == pytest.approx(0.02)
    assert seen.prefilled_s["large prompt"] > seen.finished_s["came"]


def test_no_prompt_takes_the_room_that_a_prefilled_request_waits_for():
    engine = mixed_of()
    engine.submit("begun", 150, 10, at_s=0.0)
    engine.submit("decodes", 200, 10, prefilled=True, at_s=0.005)
    engine.submit("large came", 600, 200, prefilled=True, at_s=0.005)
    engine.submit("came behind it", 10, 10, prefilled=True, at_s=0.005)
    engine.submit("prompt", 50, 1, at_s=0.005)
    seen = seen_by(engine)
    # What was begun goes on beside the batch; room comes when it and the decode have ended.
    assert seen.prefilled_s["begun"] == pytest.approx(0.01 + 0.015)
    assert seen.finished_s["decodes"] == pytest.approx(0.115)
    assert seen.prefilled_s["prompt"] == pytest.approx(0.115 + 0.015)
    assert seen.first_s["large came"] == seen.first_s["came behind it"] == pytest.approx(0.115 + 0.015)


def test_a_prompt_that_has_begun_keeps_its_place_in_the_batch():
    engine = mixed_of(max_batch_size=1)
    engine.submit("prompt", 250, 2, at_s=0.0)
    engine.submit("came", 50, 1, prefilled=True, at_s=0.005)
    seen = seen_by(engine)
    assert seen.first_s == pytest.approx({"prompt": 0.025, "came": 0.045})


def test_received_prompts_are_cached_for_the_next_turn():
    engine = mixed_of(chunk_tokens=0, prefix_cache_tokens=1_000, block_tokens=100)
    turns = [[7, 8], [7, 8, 9], [7, 8, 9]]
    engine.submit("first", 200, 1, prefilled=True, at_s=0.0, blocks=turns[0])
    engine.submit("second", 280, 1, at_s=1.0, blocks=turns[1])
    seen = seen_by(engine, until_s=2.0)
    assert engine.missing_tokens(280, turns[2]) == 1
    engine.submit("third", 280, 1, prefilled=True, at_s=2.0, blocks=turns[2])
    engine.advance(1e9)
    assert seen.first_s["second"] == pytest.approx(1.008)
    assert engine.prompt_tokens == 200 + 280 + 280
    assert engine.cached_tokens == 0 + 200 + 279
    assert engine.external_tokens == 200 + 0 + 1


def test_a_decode_replica_receives_and_does_not_cache():
    engine = steps_of(prefix_cache_tokens=1_000, block_tokens=100)
    for name in "ab":
        engine.submit(name, 200, 1, prefilled=True, at_s=0.0, blocks=[7, 8])
    engine.advance(1e9)
    assert (engine.prompt_tokens, engine.cached_tokens, engine.external_tokens) == (400, 0, 400)


def test_busy_time_is_that_of_iterations():
    engine = mixed_of()
    assert engine.busy_s(1.0) == 0.0
    engine.submit("came", 10, 3, prefilled=True, at_s=1.0)
    engine.advance(1.01)
    assert engine.busy_s(1.016) == pytest.approx(0.016)
    assert engine.busy_s(9.0) == pytest.approx(0.02)
    engine.advance(9.0)
    assert engine.busy_s(9.0) == pytest.approx(0.03)
    engine.submit("prompt", 100, 1, at_s=9.0)
    engine.advance(20.0)
    assert engine.busy_s(20.0) == pytest.approx(0.04)


@given(
    seed=st.integers(0, 2**32 - 1), max_batch=st.integers(1, 6), chunk_tokens=st.sampled_from([0, 90, 300])
)
def test_a_mix_of_whole_and_half_requests_leaves_nothing_behind(seed, max_batch, chunk_tokens):
    random = np.random.default_rng(seed)
    profile = roofline_profile(capacity=3_000)
    rules = EngineRules(
        max_batch_size=max_batch, chunk_tokens=chunk_tokens, prefix_cache_tokens=1_000, block_tokens=50
    )
    engine, seen, kinds, lengths, aborted = LiveEngine(profile, rules, Role.MIXED), Seen(), {}, {}, set()
    for number in range(40):
        name, at_s, kind = str(number), number * 0.01, random.integers(3)
        isl, osl = int(random.integers(1, 400)), int(random.integers(1, 60))
        blocks = [1000 * int(random.integers(3)) + n for n in range(isl // 50)]
        engine.submit(name, isl, osl, prefilled=kind == 1, prefill_only=kind == 2, at_s=at_s, blocks=blocks)
        kinds[name], lengths[name] = kind, osl
        if random.random() < 0.3:
            victim = str(random.integers(0, number + 1))
            aborted |= {victim} if engine.abort(victim) else set()
        seen.take(engine.advance(at_s))
        assert 0 <= engine.kv_tokens <= 3_000
        assert engine.running <= max_batch
    seen.take(engine.advance(1e9))
    assert (engine.running, engine.waiting, engine.kv_tokens) == (0, 0, 0)
    engine.submit("whole", 2_990, 10, prefilled=True, at_s=1e9)
    engine.advance(1e9)
    assert engine.running == 1, "there is room for one that fills it"
    kept = kinds.keys() - aborted
    assert seen.finished_s.keys() == {name for name in kept if kinds[name] != 2}
    assert seen.prefilled_s.keys() - aborted == {name for name in kept if kinds[name] != 1}
    assert all(seen.tokens[name] == lengths[name] for name in kept if kinds[name] != 2)
    assert not any(kinds[name] == 2 for name in seen.tokens)


@pytest.mark.parametrize(
    ("role", "part"),
    [
        (Role.PREFILL, {"prefilled": True}),
        (Role.DECODE, {}),
        (Role.DECODE, {"prefill_only": True}),
        (Role.MIXED, {"prefilled": True, "prefill_only": True}),
    ],
)
def test_a_part_that_the_role_does_not_do_is_refused(role, part):
    with pytest.raises(ValueError, match=f"not what a {role} replica takes"):
        steps_of(role=role).submit("a", 10, 5, at_s=0.0, **part)
