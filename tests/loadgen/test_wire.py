"""Prompts and server-sent events."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.loadgen import LoadError, LoadPlan, PromptForm
from headway.loadgen.client import EventParser, read_event
from headway.loadgen.plan import planned_requests
from headway.planning import Slo
from headway.workload import TraceOptions, open_trace

LOAD = "steady:rate_rps=5,duration_s=10,input_tokens=700,output_tokens=9,seed=4"


def plan(**changes: object) -> LoadPlan:
    settings = {"url": "http://x:1", "model": "m", "slo": Slo(ttft_s=1.0, itl_s=1.0), **changes}
    return LoadPlan(**settings)  # type: ignore[arg-type]


def test_prompts_have_exactly_the_tokens_of_the_trace() -> None:
    with open_trace(LOAD) as trace:
        for planned in planned_requests(trace, plan()):
            body = json.loads(planned.body)
            assert len(body["prompt"]) == planned.input_tokens
            assert body["max_tokens"] == planned.output_tokens
            assert body["stream_options"] == {"include_usage": True}


def test_text_prompts_have_as_many_words() -> None:
    with open_trace(LOAD) as trace:
        planned = next(planned_requests(trace, plan(prompt=PromptForm.TEXT)))
    assert len(json.loads(planned.body)["prompt"].split()) == planned.input_tokens


def test_the_same_seed_gives_the_same_bytes_and_prompts_differ() -> None:
    with open_trace(LOAD) as trace:
        once, again = ([item.body for item in planned_requests(trace, plan())] for _ in range(2))
        other = [item.body for item in planned_requests(trace, plan(seed=1))]
    assert once == again
    assert once != other
    assert len(set(once)) == len(once)


def test_shared_prefix_blocks_become_shared_tokens(tmp_path: object) -> None:
    rows = [
        {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]},
        {"timestamp": 10, "input_length": 1200, "output_length": 5, "hash_ids": [1, 2, 9]},
    ]
    path = tmp_path / "blocks.jsonl"  # type: ignore[operator]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with open_trace(path) as trace:
        first, second = (json.loads(item.body)["prompt"] for item in planned_requests(trace, plan()))
    assert (len(first), len(second)) == (1100, 1200)
    assert first[:1024] == second[:1024]
    assert first[1024:] != second[1024:1100]


def test_time_scale_plays_faster() -> None:
    with open_trace(LOAD, TraceOptions(duration_s=5)) as trace:
        normal = [item.at_s for item in planned_requests(trace, plan())]
        fast = [item.at_s for item in planned_requests(trace, plan(time_scale=4.0))]
    assert fast == pytest.approx([at_s / 4 for at_s in normal])


@given(st.integers(1, 40))
def test_events_do_not_depend_on_how_the_bytes_are_cut(size: int) -> None:
    sent = b': comment\n\ndata: {"a":1}\r\n\r\nevent: x\ndata: one\ndata: two\n\ndata: [DONE]\n\n'
    parser = EventParser()
    found = [data for at in range(0, len(sent), size) for data in parser.feed(sent[at : at + size])]
    assert found == [b'{"a":1}', b"one\ntwo", b"[DONE]"]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b'{"error": {"message": "engine\\n failed", "type": "server_error"}}', "engine failed"),
        (b'{"error": "plain"}', "plain"),
        (b"oops", "not a JSON object: b'oops'"),
        (b"[1]", "not a JSON object: b'[1]'"),
    ],
)
def test_error_events(data: bytes, error: str) -> None:
    assert read_event(data).error == error


def test_events_that_are_no_tokens() -> None:
    role = read_event(b'{"choices": [{"text": "", "finish_reason": null}], "usage": null}')
    assert not role.has_text
    last = read_event(b'{"choices": [], "usage": {"completion_tokens": 7, "prompt_tokens": 3}}')
    assert (last.has_text, last.output_tokens, last.input_tokens) == (False, 7, 3)


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://x", "http://", "http://x:99999", "http://x:0"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(LoadError, match="is not an address"):
        plan(url=url)


@pytest.mark.parametrize("url", ["http://x:1", "http://x:1/", "http://x:1/v1", "http://x:1/v1/"])
def test_addresses_with_and_without_v1(url: str) -> None:
    assert plan(url=url).completions_url == "http://x:1/v1/completions"


@pytest.mark.parametrize("bad", [{"time_scale": 0.0}, {"timeout_s": float("nan")}, {"max_in_flight": 0}])
def test_settings_without_meaning(bad: dict[str, float]) -> None:
    with pytest.raises(LoadError):
        plan(**bad)


def test_the_key_is_not_shown() -> None:
    assert "secret" not in repr(plan(api_key="secret"))
