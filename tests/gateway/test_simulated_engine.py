"""The gateway over a simulated engine in the same process: what it says, and that slots are freed."""

from collections.abc import Iterator

import pytest

from headway.config import HeadwayConfig
from tests.gateway.conftest import client
from tests.gateway.one_engine import OneEngine
from tests.gateway.serving import Running, serving, until

CONFIG = HeadwayConfig.model_validate({"model": "m", "engine": {"time_scale": 2.0}})
LONG = 50_000


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving(CONFIG, OneEngine(CONFIG)) as one:
        yield one


def load(running: Running) -> tuple[int, int, float]:
    (only,) = running.app.state.traffic.backend.replicas()
    return only.running, only.waiting, only.kv_usage


def test_streamed_and_whole_outputs_are_the_same(running: Running):
    asked = {"model": "m", "prompt": "Why is the sky blue?", "max_tokens": 20, "seed": 3}
    with client(running) as api:
        whole = api.completions.create(**asked)
        events = list(api.completions.create(**asked, stream=True))
    assert whole.usage.completion_tokens == 20
    assert whole.choices[0].text.startswith(" [simulated]")
    assert "".join(event.choices[0].text for event in events) == whole.choices[0].text
    assert events[-1].choices[0].finish_reason == "length"


def test_a_stop_string_frees_the_engine(running: Running):
    asked = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": LONG}
    with client(running) as api:
        answer = api.chat.completions.create(**asked, stop=["simulated", "]"])
    assert answer.choices[0].message.content == " ["
    until(lambda: load(running) == (0, 0, 0.0))


def test_a_client_that_goes_frees_the_engine(running: Running):
    with client(running) as api:
        stream = api.completions.create(model="m", prompt="Hi", max_tokens=LONG, stream=True)
        next(stream)
        assert load(running)[0] == 1
        stream.close()
    until(lambda: load(running) == (0, 0, 0.0))
