"""What a key may have at once and in a minute."""

import json
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.config import HeadwayConfig
from serve_apps.faults import OverLimit, Shed
from serve_apps.gateway.admission import KeyLimits, Places, Quotas
from tests.clocks import Clock
from tests.gateway.doubles import WAIT, ScriptedBackend, chunks
from tests.gateway.serving import post, serving, until
from tests.patience import PATIENCE_S


def books() -> tuple[Quotas, Clock]:
    clock = Clock()
    return Quotas(clock), clock


def spend(quotas: Quotas, limits: KeyLimits, tokens: int = 1, really: int | None = None) -> None:
    with quotas.used("a", limits, tokens, lambda: tokens if really is None else really, stream=False):
        pass


def test_requests_of_a_minute_come_back_over_the_minute() -> None:
    quotas, clock = books()
    limits = KeyLimits(requests_per_minute=6)
    for _ in range(6):
        spend(quotas, limits)
    with pytest.raises(OverLimit, match="6 requests a minute") as refused:
        quotas.check("a", limits)
    assert refused.value.retry_after_s == pytest.approx(10.0)
    clock.now_s += 10.0
    spend(quotas, limits)
    with pytest.raises(OverLimit):
        spend(quotas, limits)
    clock.now_s += 3600.0
    for _ in range(6):
        spend(quotas, limits)
    with pytest.raises(OverLimit):
        spend(quotas, limits)


def test_what_was_not_produced_is_given_back() -> None:
    quotas, _ = books()
    limits = KeyLimits(tokens_per_minute=100)
    for _ in range(9):
        spend(quotas, limits, tokens=90, really=10)
    spend(quotas, limits, tokens=90)
    with pytest.raises(OverLimit, match="100 tokens a minute"):
        spend(quotas, limits)


def test_what_is_served_elsewhere_is_counted_there_alone() -> None:
    quotas, _ = books()
    limits = KeyLimits(requests_per_minute=2, tokens_per_minute=100)
    for _ in range(9):
        with (
            pytest.raises(Shed),
            quotas.used("a", limits, 90, lambda: 40, stream=False, requests=2, given_back=lambda _: True),
        ):
            raise Shed("no place")
    spend(quotas, limits, tokens=60)
    spend(quotas, limits, tokens=40)
    with pytest.raises(OverLimit):
        spend(quotas, limits)


def test_more_than_a_minutes_tokens_at_once_is_a_debt_and_not_a_refusal() -> None:
    quotas, clock = books()
    limits = KeyLimits(tokens_per_minute=100)
    spend(quotas, limits, tokens=250)
    with pytest.raises(OverLimit) as refused:
        spend(quotas, limits)
    assert refused.value.retry_after_s is not None
    clock.now_s += refused.value.retry_after_s
    spend(quotas, limits)


def test_a_limit_that_is_changed_holds_from_then_on() -> None:
    quotas, clock = books()
    spend(quotas, KeyLimits(requests_per_minute=1))
    with pytest.raises(OverLimit):
        spend(quotas, KeyLimits(requests_per_minute=1))
    clock.now_s += 1.0
    spend(quotas, KeyLimits(requests_per_minute=120))
    spend(quotas, KeyLimits())


@pytest.mark.parametrize("limits", [{"requests_at_once": 1}, {"tokens_at_once": 1}, {"streams_at_once": 1}])
def test_what_is_under_way(limits: dict[str, int]) -> None:
    quotas, _ = books()
    found = KeyLimits(**limits)
    with quotas.used("a", found, 5, lambda: 5, stream=True):
        with (
            pytest.raises(OverLimit, match="at once") as refused,
            quotas.used("a", found, 5, lambda: 5, stream=True),
        ):
            pass
        assert refused.value.retry_after_s == 1.0
        with quotas.used("b", found, 5, lambda: 5, stream=True):
            assert quotas.accounts["b"].requests == 1
    with quotas.used("a", found, 5, lambda: 5, stream=True):
        pass
    account = quotas.accounts["a"]
    assert (account.requests, account.streams, account.tokens) == (0, 0, 0)


def test_a_call_counts_as_many_requests_as_it_has_outputs() -> None:
    quotas, _ = books()
    limits = KeyLimits(requests_at_once=4, requests_per_minute=6, streams_at_once=2)
    with quotas.used("a", limits, 5, lambda: 5, stream=True, requests=3):
        quotas.check("a", limits)
        with quotas.used("a", limits, 5, lambda: 5, stream=True, requests=2):
            assert (quotas.accounts["a"].requests, quotas.accounts["a"].streams) == (5, 2)
            with pytest.raises(OverLimit, match="4 requests at once"):
                quotas.check("a", limits)
    spend(quotas, limits)
    with pytest.raises(OverLimit, match="6 requests a minute"):
        quotas.check("a", limits)


def test_one_keys_limit_is_no_others_and_no_load_to_plan_for(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    of_small = "{requests_at_once: 1, tokens_per_minute: 100000}"
    keys.write_text(
        f"- {{name: small, key: sk-small, roles: [infer], limits: {of_small}}}\n"
        "- {name: big, key: sk-big, roles: [infer]}\n"
    )
    config = HeadwayConfig.model_validate({"model": "m", "gateway": {"keys_file": str(keys)}})
    backend = ScriptedBackend([*chunks("a")[:0], WAIT])

    def ask(url: str, key: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"}
        return post(f"{url}/v1/completions", json={"model": "m", "prompt": "x"}, headers=headers)

    with serving(config, backend) as running:
        with httpx.Client(timeout=PATIENCE_S) as first:
            asked = first.build_request(
                "POST",
                f"{running.url}/v1/completions",
                json={"model": "m", "prompt": "x", "stream": True},
                headers={"authorization": "Bearer sk-small"},
            )
            backend.script = [chunks("a", "b")[0], WAIT]
            begun = first.send(asked, stream=True)
            backend.script = chunks("a")
            refused = ask(running.url, "sk-small")
            assert refused.status_code == 429
            assert json.loads(refused.content)["error"]["code"] == "key_limit_exceeded"
            assert "retry-after" in refused.headers
            assert ask(running.url, "sk-big").status_code == 200
            begun.close()
        until(lambda: running.app.state.traffic.requests == 0)
        until(lambda: ask(running.url, "sk-small").status_code == 200)
        metrics = running.app.state.metrics
        assert metrics.requests["shed"] == 0
        assert metrics.arrivals == metrics.requests["ok"] + metrics.requests["aborted"]


def test_several_gateways_share_a_limit_and_never_let_more_through() -> None:
    limits = KeyLimits(requests_at_once=5, tokens_per_minute=100, weight=1.5)
    assert limits.shared(2) == KeyLimits(requests_at_once=2, tokens_per_minute=50, weight=1.5)
    assert limits.shared(1) == limits
    with pytest.raises(ValueError, match="requests_at_once: 5 is too little to share among 6 gateways"):
        limits.shared(6)
    quotas = Quotas(lambda: 0.0, gateways=2)
    with (
        quotas.used("a", KeyLimits(requests_at_once=1), 1, lambda: 1, stream=False),
        pytest.raises(OverLimit, match="1 requests at once at each of 2 gateways"),
    ):
        quotas.check("a", KeyLimits(requests_at_once=1))


class Flood:
    """Keys that begin and end requests at one gateway."""

    def __init__(self, most: int) -> None:
        self.places = Places(most)
        self.open: dict[str, list[AbstractContextManager[None]]] = {}

    def begin(self, name: str, weight: float = 1.0, *, alone: bool = False, count: int = 1) -> bool:
        """Whether it gets in."""
        place = self.places.some(count, name, KeyLimits(weight=weight), alone=alone)
        try:
            place.__enter__()
        except Shed:
            return False
        self.open.setdefault(name, []).append(place)
        return True

    def end(self, name: str) -> None:
        """One of its requests."""
        self.open[name].pop().__exit__(None, None, None)

    def count(self, name: str) -> int:
        """Of its requests in flight."""
        return len(self.open.get(name, []))


def test_a_key_that_floods_leaves_to_the_next_one_what_it_is_entitled_to() -> None:
    flood = Flood(160)
    while flood.begin("a"):
        pass
    assert flood.count("a") == 150
    assert all(flood.begin("b") for _ in range(10))
    assert not flood.begin("b")
    # What ends is the next one's, until both have their share.
    for _ in range(65):
        flood.end("a")
        assert not flood.begin("a")
        assert flood.begin("b")
    assert flood.count("b") == 75
    flood.end("a")
    assert not flood.begin("b")


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize(("held", "of_others"), [(0, 0), (10, 100), (100, 30), (70, 85), (0, 150)])
def test_a_call_gets_in_where_each_of_its_outputs_would(held: int, of_others: int, alone: bool) -> None:
    for count in (1, 2, 10, 30, 128):
        one_by_one, at_once = Flood(160), Flood(160)
        for flood in (one_by_one, at_once):
            assert all(flood.begin("b") for _ in range(of_others))
            assert all(flood.begin("a") for _ in range(held))
        all_got_in = all(one_by_one.begin("a", alone=alone) for _ in range(count))
        assert at_once.begin("a", alone=alone, count=count) == all_got_in
        assert at_once.places.taken == held + of_others + (count if all_got_in else 0)


def test_what_one_leaves_lying_is_the_others() -> None:
    flood = Flood(160)
    assert all(flood.begin("b") for _ in range(20))
    while flood.begin("a"):
        pass
    assert flood.count("a") == 130


def test_shares_go_by_weight() -> None:
    flood = Flood(1600)
    while flood.begin("b", 2.0) or flood.begin("a"):
        pass
    for _ in range(3000):
        for name in "ab":
            flood.end(name)
            flood.begin("a")
            flood.begin("b", 2.0)
    assert flood.count("a") == pytest.approx(500, abs=101)
    assert flood.count("b") == pytest.approx(1000, abs=101)


@given(
    st.integers(1, 40),
    st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=200),
)
def test_a_key_below_its_share_is_only_refused_when_no_place_is_free(
    most: int, steps: list[tuple[str, bool]]
) -> None:
    flood = Flood(most)
    for name, begins in steps:
        if begins:
            free = most - flood.places.taken
            active = {key for key, held in flood.open.items() if held} | {name}
            entitled = flood.count(name) < (most - max(1, most // 16)) / len(active)
            began = flood.begin(name)
            assert began or not free or not entitled
            assert free or not began
        elif flood.count(name):
            flood.end(name)
    with ExitStack() as stack:
        for held in flood.open.values():
            for place in held:
                stack.push(place)
    assert flood.places.taken == 0


def test_without_another_key_all_places_are_its_own() -> None:
    flood = Flood(16)
    assert all(flood.begin("a", alone=True) for _ in range(16))
    assert not flood.begin("a", alone=True)


def test_a_key_that_floods_shuts_no_door_to_another(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(
        "- {name: flood, key: sk-flood, roles: [infer]}\n- {name: steady, key: sk-steady, roles: [infer]}\n"
    )
    settings = {"keys_file": str(keys), "max_requests": 8}
    config = HeadwayConfig.model_validate({"model": "m", "gateway": settings})
    backend = ScriptedBackend([chunks("a", "b")[0], WAIT])
    asked = {"model": "m", "prompt": "x", "stream": True}

    with (
        serving(config, backend) as running,
        httpx.Client(timeout=PATIENCE_S) as client,
        ExitStack() as stack,
    ):

        def ask(key: str) -> httpx.Response:
            request = client.build_request(
                "POST",
                f"{running.url}/v1/completions",
                json=asked,
                headers={"authorization": f"Bearer sk-{key}"},
            )
            answer = client.send(request, stream=True)
            stack.callback(answer.close)
            return answer

        flood = [ask("flood").status_code for _ in range(20)]
        assert flood.count(200) == 7
        refused = ask("flood")
        assert refused.status_code == 429
        assert "for others" in refused.read().decode()
        backend.script = chunks("a", "b")
        for _ in range(20):
            assert ask("steady").read().endswith(b"data: [DONE]\n\n")
            assert ask("flood").status_code == 429
            until(lambda: running.app.state.traffic.requests == 7)
        metrics = running.app.state.metrics
        assert metrics.requests["shed"] == 34
        assert metrics.arrivals == 61
