"""Prompts of generated load that share prefixes or grow by their earlier turns, as prefix blocks."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from trace_files import as_bytes, whole

from headway.workload import BLOCK_TOKENS, TraceError, TraceOptions, open_trace

STEADY = "steady:rate_rps=20,duration_s=200,seed=3,input_tokens=300"


def prompts(spec: str) -> list[tuple[float, int, int, list[int]]]:
    """Arrival, input and output tokens, and blocks of each request."""
    with open_trace(spec) as trace:
        chunk, ids = whole(trace), trace.blocks
        starts = zip(chunk.block_start.tolist(), chunk.block_count.tolist(), strict=True)
        blocks = [ids[start : start + count].tolist() for start, count in starts]
    columns = (chunk.arrival_s, chunk.input_tokens, chunk.output_tokens)
    return list(zip(*(column.tolist() for column in columns), blocks, strict=True))


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Leading blocks that both have."""
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def test_without_their_keys_nothing_is_shared_and_nothing_else_changes() -> None:
    with open_trace(STEADY) as plain, open_trace(f"{STEADY},prefixes=4,prefix_tokens=1000") as shared:
        assert not len(plain.blocks)
        ours, theirs = whole(plain), whole(shared)
    assert theirs.arrival_s.tobytes() == ours.arrival_s.tobytes()
    assert theirs.output_tokens.tobytes() == ours.output_tokens.tobytes()
    assert (theirs.input_tokens - ours.input_tokens == 1000).all()


def test_each_prompt_begins_with_one_of_the_prefixes() -> None:
    found = prompts(f"{STEADY},prefixes=5,prefix_tokens=2048")
    begins = Counter(tuple(blocks[:4]) for *_, blocks in found)
    assert len(begins) == 5
    assert min(begins.values()) > 0.15 * len(found)
    assert len({block for prefix in begins for block in prefix}) == 20
    rest = [block for *_, blocks in found for block in blocks[4:]]
    assert len(rest) == len(set(rest))
    for _, tokens, _, blocks in found:
        assert (len(blocks) - 1) * BLOCK_TOKENS < tokens <= len(blocks) * BLOCK_TOKENS


def test_the_rest_of_a_prefix_is_not_shared() -> None:
    found = prompts(f"{STEADY},prefixes=1,prefix_tokens=1500")
    assert {common(found[0][3], blocks) for *_, blocks in found[1:]} == {2}


def test_prefixes_may_be_of_unlike_weight() -> None:
    found = prompts(f"{STEADY},prefixes=3,prefix_tokens=512,prefix_zipf=1")
    shares = Counter(blocks[0] for *_, blocks in found)
    wanted = np.array([6, 3, 2]) / 11
    assert [shares[block] / len(found) for block in range(3)] == pytest.approx(wanted, abs=0.03)


def test_a_turn_has_the_prompt_and_the_answer_before_it() -> None:
    found = prompts(f"{STEADY.replace('=300', '=2000')},input_cv=0.2,turns=3,turn_gap_s=7")
    last: dict[int, tuple[int, tuple[float, int, int, list[int]]]] = {}
    turns = []
    for request in found:
        at_s, tokens, _, blocks = request
        number, before = last.get(blocks[0], (0, None))
        if before is not None:
            assert at_s - before[0] >= 7.0
            assert tokens > before[1] + before[2]
            assert common(blocks, before[3]) == before[1] // BLOCK_TOKENS
        last[blocks[0]] = (number + 1, request)
        turns.append(number + 1)
    assert set(turns) == {1, 2, 3}
    late = turns[len(turns) // 2 :]
    assert late.count(1) / len(late) == pytest.approx(1 / 3, abs=0.05)


def test_blocks_do_not_depend_on_the_size_of_chunks_and_copies_are_others() -> None:
    spec = f"{STEADY},turns=4,prefixes=2"
    with open_trace(spec) as trace, open_trace(spec) as again:
        assert as_bytes(trace, 1000) == as_bytes(trace, 7)
        assert trace.blocks.tobytes() == again.blocks.tobytes()
    with open_trace(spec, TraceOptions(rate_scale=2)) as twice:
        assert set(whole(twice).copy.tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("keys", "shared"), [("", 1), (",prefixes=2", 4), (",turns=2", 0), (",prefixes=1,prefix_tokens=9", 0)]
)
def test_the_first_block_of_a_conversations_own_is_known(keys: str, shared: int) -> None:
    with open_trace(STEADY + keys) as trace:
        assert trace.shared_blocks == shared


@pytest.mark.parametrize(
    ("pair", "problem"),
    [
        ("prefixes=2.5", "prefixes: '2.5' is not a whole number"),
        ("prefixes=-1", "prefixes: must be at least 0 and at most 1e"),
        ("prefix_tokens=2000000", "prefix_tokens: must be at least 0 and at most 1e"),
        ("turns=0", "turns: must be above 0 and at most 1000"),
        ("turn_gap_s=-1", "turn_gap_s: must be at least 0"),
        ("prefix_zipf=11", "prefix_zipf: must be at least 0 and at most 10"),
    ],
)
def test_bad_keys_are_named(pair: str, problem: str) -> None:
    with pytest.raises(TraceError, match=problem):
        open_trace(f"{STEADY},{pair}")
