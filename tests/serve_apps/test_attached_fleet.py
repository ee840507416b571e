"""The API of an attached fleet: several control planes alone behind one front."""

from collections.abc import Mapping
from typing import Any

import pytest

from serve_apps.access import Access
from serve_apps.control_host import ControlApp
from serve_apps.control_metrics import ControlMetrics, StatusFeed
from serve_apps.gateway.many_models import ManyModels
from tests.gateway.test_many_models import asked

DESIRED = {"chat": 2, "rare": 0, "gone": 1}


async def _budget() -> Mapping[str, Any]:
    return {"gpus": 4, "deployments": [{"name": "chat", "shares": True, "holds": 2}]}


def app(name: str) -> ControlApp:
    pool = {"ready": DESIRED[name], "desired": DESIRED[name], "running": 3.0, "waiting": None}

    async def status() -> Mapping[str, Any]:
        return {"pools": {"mixed": pool}, "planner": {"state": "running"}}

    async def waits_for() -> str:
        return "its source does not answer" if name == "gone" else ""

    return ControlApp([], Access({}), waits_for, ControlMetrics(f"{name}-8b", StatusFeed(status)))


@pytest.fixture
def front() -> ManyModels:
    made = ManyModels(Access({}), _budget)
    made.change({name: app(name) for name in DESIRED})
    return made


def test_each_has_its_line_its_metrics_and_its_paths(front: ManyModels) -> None:
    fleet = asked(front, "GET", "/v1/fleet").json()
    chat, rare, _ = fleet["deployments"]

    assert (fleet["gpus"], chat["budget"]["holds"], rare["budget"]) == (4, 2, None)
    assert [(each["model"], each["planner"], each["in_flight"]) for each in (chat, rare)] == [
        ("chat-8b", "running", 3),
        ("rare-8b", "running", 3),
    ]
    ready = asked(front, "GET", "/ready").json()
    assert ready == {"status": "ready", "waiting": {"gone": "its source does not answer"}}
    assert asked(front, "GET", "/deployments/gone/ready").status_code == 503
    page = asked(front, "GET", "/metrics").text
    wanted = 'headway_replicas{deployment="rare",model="rare-8b",role="mixed",state="desired"} 0.0'
    assert wanted in page


def test_models_have_their_state_and_nobody_takes_a_request(front: ManyModels) -> None:
    models = asked(front, "GET", "/v1/models").json()["data"]

    assert [(each["id"], each["deployment"], each["state"]) for each in models] == [
        ("chat-8b", "chat", "ready"),
        ("rare-8b", "rare", "asleep"),
        ("gone-8b", "gone", "starting"),
    ]
    body = {"model": "chat-8b", "prompt": "x"}
    assert asked(front, "POST", "/v1/completions", json=body).status_code == 404
    assert asked(front, "GET", "/v1/requests/mine").status_code == 404
