"""What a key may have at once and in a minute."""

import json
from pathlib import Path

import httpx
import pytest

from headway.config import HeadwayConfig
from serve_apps.gateway.backend import OverLimit
from serve_apps.gateway.quotas import KeyLimits, Quotas
from tests.gateway.doubles import WAIT, ScriptedBackend, chunks
from tests.gateway.serving import post, serving, until


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def books() -> tuple[Quotas, Clock]:
    clock = Clock()
    return Quotas(clock, retry_after_s=2.0), clock


def spend(quotas: Quotas, limits: KeyLimits, tokens: int = 1, really: int | None = None) -> None:
    with quotas.used("a", limits, tokens, stream=False) as tell:
        tell(tokens if really is None else really)


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
    with quotas.used("a", found, 5, stream=True):
        with pytest.raises(OverLimit, match="at once") as refused, quotas.used("a", found, 5, stream=True):
            pass
        assert refused.value.retry_after_s == 2.0
        with quotas.used("b", found, 5, stream=True):
            assert quotas.accounts["b"].requests == 1
    with quotas.used("a", found, 5, stream=True):
        pass
    account = quotas.accounts["a"]
    assert (account.requests, account.streams, account.tokens) == (0, 0, 0)


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
        with httpx.Client(timeout=30.0) as first:
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


def test_what_a_full_gateway_turns_away_is_load_all_the_same() -> None:
    config = HeadwayConfig.model_validate({"model": "m", "gateway": {"max_requests": 1}})
    backend = ScriptedBackend([chunks("a", "b")[0], WAIT])
    asked = {"model": "m", "prompt": "x", "stream": True}
    with serving(config, backend) as running:
        url = f"{running.url}/v1/completions"
        with httpx.stream("POST", url, json=asked, timeout=60.0):
            assert post(url, json=asked).status_code == 429
        metrics = running.app.state.metrics
        until(lambda: metrics.requests["aborted"] == 1)
        assert metrics.requests["shed"] == 1
        assert metrics.arrivals == 2
