"""Requests that come again: known as repeats, each by a failure of its own."""

import time
from collections import Counter, deque

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.collector.request_list import ARRIVAL, REPEAT, decode
from serve_apps.faults import Shed
from serve_apps.gateway.backend import Overloaded, ReplicaLost
from serve_apps.gateway.repeats import (
    FAILED_S,
    FAILURES,
    LATE_S,
    OVERLOAD_S,
    Attempt,
    Repeats,
    RetryBudgets,
    claimed,
)
from tests.clocks import Clock
from tests.gateway.conftest import Serve, client
from tests.gateway.doubles import WAIT, ScriptedBackend, chunks
from tests.gateway.serving import Running, get, post, until

ASKED = {"model": "m", "prompt": [7] * 12, "max_tokens": 9}


def books(most: int = 100) -> tuple[Repeats, Clock]:
    clock = Clock()
    return Repeats(clock, most), clock


def begin(repeats: Repeats, body: bytes = b"x", key: str = "a", *, claimed: bool = False) -> Attempt:
    return repeats.begin(key, repeats.digest(key, "/v1/completions", body), claimed=claimed)


@pytest.mark.parametrize("outcome", sorted(FAILURES))
def test_a_request_that_failed_and_comes_again_is_a_repeat_once(outcome) -> None:
    repeats, clock = books()
    repeats.end(begin(repeats), outcome)
    clock.now_s += FAILED_S
    assert [begin(repeats).repeat for _ in range(2)] == [True, False]


@pytest.mark.parametrize("outcome", ["ok", "invalid", "too_long"])
def test_equal_requests_that_got_their_answer_are_demand(outcome) -> None:
    repeats, _ = books()
    repeats.end(begin(repeats), outcome)
    assert not begin(repeats).repeat


def test_those_that_run_beside_each_other_are_demand() -> None:
    repeats, clock = books()
    flying = []
    for _ in range(5):
        clock.now_s += 0.3
        flying.append(begin(repeats))
    assert not any(each.repeat for each in flying)
    # What is turned away is answered: its client cannot have come again before.
    repeats.end(flying[0], "shed")
    assert not any(each.repeat for each in flying)


def test_what_failed_long_ago_or_of_another_key_or_body_or_endpoint_explains_nothing() -> None:
    repeats, clock = books()
    repeats.end(begin(repeats), "shed")
    assert not begin(repeats, key="b").repeat
    assert not begin(repeats, b"y").repeat
    assert not repeats.begin("a", repeats.digest("a", "/v1/responses", b"x")).repeat
    clock.now_s += FAILED_S + 1.0
    assert not begin(repeats).repeat
    assert not begin(repeats, claimed=True).repeat


def test_of_a_chain_of_attempts_the_first_is_demand() -> None:
    repeats, clock = books()
    known = []
    for _ in range(4):
        attempt = begin(repeats)
        known.append(attempt.repeat)
        clock.now_s += 30.0
        repeats.end(attempt, "timeout")
    assert known == [False, True, True, True]


@pytest.mark.parametrize(("later_s", "known"), [(0.0, True), (LATE_S, True), (LATE_S + 0.1, False)])
def test_a_client_that_comes_again_before_it_is_known_to_have_left(later_s, known) -> None:
    repeats, clock = books()
    told: list[str] = []
    digest = repeats.digest("a", "", b"x")
    first = repeats.begin("a", digest)
    clock.now_s += 20.0
    second = repeats.begin("a", digest, lambda: told.append("second"))
    clock.now_s += later_s
    repeats.end(first, "aborted")
    assert (second.repeat, told) == (known, ["second"] if known else [])
    # One failure explains one repeat, in whichever order they come.
    assert repeats.begin("a", digest).repeat is not known


def test_a_claim_is_believed_as_long_as_a_failure_of_that_key_is_unanswered() -> None:
    repeats, _ = books()
    assert not begin(repeats, claimed=True).repeat
    repeats.end(begin(repeats, b"at another gateway"), "shed")
    assert not begin(repeats, key="b", claimed=True).repeat
    assert begin(repeats, claimed=True).repeat
    assert not begin(repeats, claimed=True).repeat
    assert not begin(repeats, b"at another gateway").repeat


@pytest.mark.parametrize(
    ("value", "known"),
    [(b"0", False), (b"1", True), (b"10", True), (b"", False), (b"-1", False), (b"x", False)],
)
def test_what_openai_s_clients_say(value: bytes, known: bool) -> None:
    assert claimed([(b"accept", b"1"), (b"x-stainless-retry-count", value)]) is known
    assert not claimed([(b"accept", b"1")])


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "end"]),
        st.sampled_from("ab"),
        st.sampled_from([b"x", b"y"]),
        st.booleans(),
        st.sampled_from([*sorted(FAILURES), "ok"]),
        st.sampled_from([0.0, 0.5, 2.0, 400.0]),
    ),
    max_size=200,
)


@given(STEPS, st.integers(1, 5) | st.just(100))
def test_there_are_never_more_repeats_than_failures_nor_more_kept_than_there_may_be(steps, most) -> None:
    repeats, clock = books(most)
    flying: deque[Attempt] = deque()
    begun: list[Attempt] = []
    failures: Counter[str] = Counter()
    for what, key, body, claim, outcome, pause_s in steps:
        clock.now_s += pause_s
        if what == "begin":
            begun.append(begin(repeats, body, key, claimed=claim))
            flying.append(begun[-1])
        elif flying:
            ended = flying.popleft()
            failures[ended.key] += outcome in FAILURES
            repeats.end(ended, outcome)
        for each in "ab":
            assert sum(one.repeat for one in begun if one.key == each) <= failures[each]
        assert sum(map(len, repeats._of_requests.values())) == repeats._kept <= most
        assert all(repeats._of_requests.values())
        assert len(repeats._recent) <= most + 1
        assert sum(map(len, repeats._alike.values())) <= len(repeats._recent)


def test_failures_that_explain_nothing_any_more_are_forgotten() -> None:
    repeats, clock = books()
    for number in range(20):
        clock.now_s += FAILED_S / 4.5
        repeats.end(begin(repeats, b"%d" % number), "shed")
    assert repeats._kept == len(repeats._of_requests) == len(repeats._of_keys["a"]) == 5


def test_more_equal_requests_fail_than_are_kept() -> None:
    repeats, _ = books(most=1)
    for attempt in [begin(repeats) for _ in range(3)]:
        repeats.end(attempt, "failed")
    assert len(repeats._of_requests) <= 1
    assert not begin(repeats, b"another").repeat


def test_digests_do_not_leave_the_process() -> None:
    one, other = books()[0], books()[0]
    assert one.digest("a", "/", b"x") == one.digest("a", "/", b"x")
    assert one.digest("a", "/", b"x") != other.digest("a", "/", b"x")


# --- budgets


def sent(budgets: RetryBudgets, *, repeat: bool, key: str = "a") -> float:
    """Seconds after which it may come again; 0: it is let in."""
    attempt = Attempt(key, b"", 0.0, repeat, lambda: None)
    try:
        budgets.check(attempt)
    except Shed as shed:
        budgets.ended("shed", attempt, begun=False)
        return shed.retry_after_s or 0.0
    return 0.0


def overloaded(share: float | None) -> tuple[RetryBudgets, Clock]:
    clock = Clock()
    budgets = RetryBudgets(share, clock)
    budgets.ended("timeout", None, begun=False)
    return budgets, clock


def test_a_key_may_repeat_a_share_of_what_it_sends_and_some_in_any_case() -> None:
    budgets, clock = overloaded(0.5)
    assert sum(not sent(budgets, repeat=True) for _ in range(50)) == 10
    assert sum(not sent(budgets, repeat=True, key="b") for _ in range(50)) == 10
    for second in range(600):
        clock.now_s += 1.0
        budgets.ended("shed", None, begun=False)
        assert [sent(budgets, repeat=False) for _ in range(4)] == [0.0] * 4
        # Half of 240 a minute: two a second, of four that come.
        let_in = sum(not sent(budgets, repeat=True) for _ in range(4))
        assert second < 200 or let_in in (1, 2, 3)
    assert sum(not sent(budgets, repeat=True) for _ in range(50)) <= 1


def test_the_wait_grows_with_those_refused_and_the_budget_comes_back() -> None:
    budgets, clock = overloaded(0.5)
    waits_s = [sent(budgets, repeat=True) for _ in range(40)][10:]
    assert waits_s == sorted(waits_s)
    assert (waits_s[0], waits_s[1], waits_s[-1]) == (6.0, 12.0, 60.0)
    clock.now_s += 30.0
    budgets.ended("shed", None, begun=False)
    assert [sent(budgets, repeat=True) for _ in range(6)] == [0.0] * 5 + [6.0]


@pytest.mark.parametrize(
    ("outcome", "begun", "refuses"),
    [
        ("shed", False, True),
        ("not_ready", False, True),
        ("timeout", True, True),
        ("aborted", False, True),
        ("aborted", True, False),
        ("failed", True, False),
        ("ok", True, False),
    ],
)
def test_repeats_are_refused_only_while_the_gateway_is_overloaded(outcome, begun, refuses) -> None:
    clock = Clock()
    budgets = RetryBudgets(0.0, clock)
    budgets.ended(outcome, None, begun=begun)
    assert any(sent(budgets, repeat=True) for _ in range(20)) is refuses
    # What is refused for its budget is no sign of overload.
    clock.now_s += OVERLOAD_S / 2
    sent(budgets, repeat=True)
    clock.now_s += OVERLOAD_S / 2 + 1.0
    assert not sent(budgets, repeat=True)


def test_without_a_budget_all_come_again() -> None:
    budgets, _ = overloaded(None)
    assert not any(sent(budgets, repeat=True) for _ in range(1_000))


# --- the gateway


def rows(running: Running) -> list[int]:
    body = get(f"{running.url}/metrics/requests").text
    return [kind for kind in decode(body).rows["output_tokens"].tolist() if kind in (ARRIVAL, REPEAT)]


def counted(running: Running) -> tuple[int, int]:
    """Arrivals, and repeats of them."""
    metrics = running.app.state.metrics
    assert f'headway_repeat_input_tokens_count{{model="m"}} {metrics.repeat_input_tokens.count}.0' in (
        get(f"{running.url}/metrics").text
    )
    return metrics.arrivals, metrics.repeat_input_tokens.count


@pytest.mark.parametrize("error", [Overloaded("too much", 0.01), ReplicaLost("gone")])
def test_openai_s_client_tries_again_by_itself(serve: Serve, error) -> None:
    running = serve(ScriptedBackend(lambda call: [error] if call < 2 else chunks("a", "b")))
    with client(running, max_retries=3) as api:
        answer = api.completions.create(model="m", prompt="Hi")
    assert answer.choices[0].text == "ab"
    assert counted(running) == (3, 2)
    assert rows(running) == [ARRIVAL, REPEAT, REPEAT]


def test_requests_that_are_answered_are_no_repeats(serve: Serve) -> None:
    running = serve(chunks("a"))
    for _ in range(3):
        post(f"{running.url}/v1/completions", json=ASKED, headers={"x-stainless-retry-count": "2"})
    assert counted(running) == (3, 0)


def test_each_output_of_a_call_that_comes_again_is_a_repeat(serve: Serve) -> None:
    running = serve(ScriptedBackend(lambda call: [ReplicaLost("gone")] if call == 0 else chunks("a")))
    statuses = [post(f"{running.url}/v1/completions", json={**ASKED, "n": 2}).status_code for _ in range(2)]
    assert statuses == [502, 200]
    assert counted(running) == (4, 2)


@pytest.mark.parametrize(
    ("stream", "script", "second"),
    [
        pytest.param(True, [*chunks("a", "b")[:1], WAIT], ARRIVAL, id="a stream, in its midst"),
        pytest.param(True, [WAIT], REPEAT, id="a stream, before its first token"),
        pytest.param(False, [*chunks("a", "b")[:1], WAIT], REPEAT, id="an answer that it wanted whole"),
    ],
)
def test_a_client_that_left_and_comes_again(serve: Serve, stream, script, second) -> None:
    running = serve(ScriptedBackend(script))
    for _ in range(2):
        with pytest.raises(httpx.ReadTimeout):
            post(f"{running.url}/v1/completions", json={**ASKED, "stream": stream}, timeout=0.2)
    until(lambda: running.app.state.metrics.requests["aborted"] == 2)
    assert counted(running) == (2, int(second == REPEAT))
    assert rows(running) == [ARRIVAL, second]


def test_the_record_of_a_request_says_so(serve: Serve) -> None:
    running = serve(ScriptedBackend(lambda call: [ReplicaLost("gone")] if call == 0 else chunks("a")))
    for _ in range(2):
        post(f"{running.url}/v1/completions", json=ASKED, headers={"x-request-id": "mine"})
    found = get(f"{running.url}/v1/requests/mine").json()["requests"]
    assert [(each["outcome"], each["repeat"]) for each in found] == [("failed", False), ("ok", True)]


def test_what_a_key_may_not_have_was_no_arrival_and_explains_nothing(serve: Serve) -> None:
    running = serve(chunks("a"))
    for _ in range(2):
        with client(running) as api, pytest.raises(openai.BadRequestError):
            api.completions.create(model="m", prompt="Hi", max_tokens=-1)
    assert counted(running) == (0, 0)


def test_a_storm_of_repeats_is_damped_and_first_attempts_are_not(serve: Serve) -> None:
    backend = ScriptedBackend([Overloaded("too much", 4.0)])
    running = serve(backend, retry_budget=0.1)
    began_s = time.monotonic()
    answers = [post(f"{running.url}/v1/completions", json=ASKED) for _ in range(20)]
    assert {answer.status_code for answer in answers} == {429}
    # The first attempt, 10 repeats, and those with what has come back since: 10 a minute, the first at once.
    assert 12 <= backend.begun <= 12 + (time.monotonic() - began_s) / 6.0
    assert {answer.json()["error"]["message"] for answer in answers} == {
        "too much",
        "While too much is in flight this key may try 10 requests again in a minute (gateway.retry_budget)",
    }
    assert counted(running) == (20, 19)
    backend.script = chunks("a")
    assert post(f"{running.url}/v1/completions", json={**ASKED, "prompt": "new"}).status_code == 200
    waits_s = {float(answer.headers["retry-after-ms"]) / 1e3 for answer in answers[:11]}
    # They are drawn, to the millisecond: a few may be alike.
    assert len(waits_s) >= 8
    assert all(4.0 <= wait_s <= 6.001 for wait_s in waits_s)
    assert {answer.headers["retry-after"] for answer in answers[:11]} <= {"4", "5", "6"}
