"""30,000 seeded events of every kind → what the default router answered, digested by five hundred.

A change of behaviour shows here first, in the first line that differs. If it is meant, this module run as a
script writes the file anew: `python -m tests.golden.test_router_events`.
"""

import json
from pathlib import Path

import pytest

from headway.config import HeadwayConfig
from tests.golden.conversations import Life

GOLDEN = Path(__file__).with_name("router_events.json")
EVENTS = 10_000
KINDS = {
    *("submit", "prefilled", "first_token", "progress", "complete", "failed", "expire"),
    *("fleet", "reports", "death", "restart"),
    *("shed no_headroom", "shed queue_full", "shed waited_too_long"),
}
"""Of events and sheds; each happens in some life."""
LIVES = {
    "mixed": ({"mixed": {}}, {}, 6, 22.0),
    "split": (
        {"prefill": {}, "decode": {}},
        {"queue": {"max_requests": 60, "max_wait_s": 1.5}},
        5,
        32.0,
    ),
    "offload": (
        {"mixed": {}},
        {"offload": {"mode": "cost", "heavy_tokens": 2048, "warm_tokens": 512}},
        6,
        24.0,
    ),
}
"""Pools, settings of the router, replicas of a pool, and requests a second."""


def log(name: str) -> list[dict[str, object]]:
    """A life of that many events."""
    pools, routing, replicas, rate_rps = LIVES[name]
    config = HeadwayConfig.model_validate(
        {
            "engine": {"profile": "llama-3.1-8b_h100_tp1"},
            "pools": pools,
            "routing": {"profile": "slo", "queue": {"max_requests": 120, "max_wait_s": 6.0}, **routing},
        }
    )
    return list(Life(config, seed=7, replicas=replicas, rate_rps=rate_rps).blocks(EVENTS))


@pytest.mark.parametrize("name", LIVES)
def test_answers_are_those_of_the_golden_log(name: str) -> None:
    happened, wanted = log(name), json.loads(GOLDEN.read_text(encoding="utf-8"))[name]
    for line, golden in zip(happened, wanted, strict=True):
        assert line == golden


def test_every_kind_of_event_happens() -> None:
    lives = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert {kind for life in lives.values() for line in life for kind in line["happened"]} >= KINDS


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({name: log(name) for name in LIVES}, indent=1) + "\n", encoding="utf-8")
