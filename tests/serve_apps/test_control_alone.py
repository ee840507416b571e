"""`user_config` of the control plane alone: settings over the application's, taken while it serves."""

import asyncio
import sys
from collections.abc import Mapping
from subprocess import run
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from actors.keeping import Keeper
from headway.config import ConfigError, HeadwayConfig, load_config
from serve_apps.control_host import ControlPlaneAlone, control_application

SETTINGS = {
    "engine.kind": "external",
    "connector.kind": "virtual",
    "metrics.source": "prometheus",
    "metrics.url": "http://prometheus:9090",
    "planner.dry_run": True,
}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[HeadwayConfig]:
    """The settings with which the actors were started, each time."""
    found: list[HeadwayConfig] = []

    def start(coming: Mapping[str, HeadwayConfig], *, routes: bool) -> Mapping[str, str]:
        assert not routes, "others route"
        found.extend(coming.values())
        return {application: f"token {len(found)} of {application}" for application in coming}

    monkeypatch.setattr("actors.keeping.control_plane.start", start)
    return found


def alone() -> Any:
    """A replica's state after its start; the class itself needs a cluster, and a server."""
    held = {"_serving": SimpleNamespace(end_live=lambda: None), "_server": SimpleNamespace(stop=AsyncMock())}
    return SimpleNamespace(
        _config=load_config(None, SETTINGS), _application="headway", _keeper=Keeper(routes=False), **held
    )


def test_settings_are_taken_over_those_of_the_application_each_time(
    started: list[HeadwayConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    plane, stopped = alone(), list[str]()
    monkeypatch.setattr("actors.keeping.control_plane.stop", lambda *, token: stopped.append(token))
    for over in ({}, {"slo": {"ttft_ms": 300}, "planner.dry_run": False}, {"slo.itl_ms": 20}):
        asyncio.run(ControlPlaneAlone.reconfigure(plane, over))
    assert [(each.slo.ttft_ms, each.slo.itl_ms, each.planner.dry_run) for each in started] == [
        (load_config(None, {}).slo.ttft_ms, load_config(None, {}).slo.itl_ms, True),
        (300, load_config(None, {}).slo.itl_ms, False),
        (load_config(None, {}).slo.ttft_ms, 20, True),
    ]
    asyncio.run(ControlPlaneAlone.__del__(plane))
    assert stopped == ["token 3 of headway"]


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ({"slo.ttft_ms": 0}, "slo.ttft_ms"),
        ({"connector": {"kind": "ray_serve"}}, "^user_config: connector.kind: ray_serve scales"),
    ],
)
def test_what_is_wrong_or_cannot_work_alone_is_refused_in_one_line(
    started: list[HeadwayConfig], over: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as refusal:
        asyncio.run(ControlPlaneAlone.reconfigure(alone(), over))
    assert "\n" not in str(refusal.value)
    assert not started


def test_serve_hands_settings_over_from_the_start() -> None:
    application = control_application(load_config(None, SETTINGS))
    assert application._bound_deployment.user_config == {}, "without any, Serve would not start the actors"


def test_a_control_plane_alone_loads_neither_the_path_of_requests_nor_a_compiler():
    asked = [sys.executable, "-c", "import sys, serve_apps.control_host; print(*sys.modules)"]
    loaded = set(run(asked, capture_output=True, text=True, check=True).stdout.split())
    assert "serve_apps.http_server" in loaded
    assert not loaded & {"serve_apps.gateway.app", "serve_apps.serve_backend", "actors.planner", "numba"}
