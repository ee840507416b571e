"""The private interfaces of Ray Serve that `compat_serve` uses are there: by name."""

import inspect
from dataclasses import fields

import pytest
from ray.serve._private.common import RequestMetadata
from ray.serve._private.handle_options import InitHandleOptions
from ray.serve._private.request_router import request_router as serve_router
from ray.serve.handle import DeploymentHandle, DeploymentResponse, _DeploymentResponseBase

from serve_apps.compat_serve import LEAN, HeadwayRouter


def test_a_handle_runs_its_router_on_the_callers_loop():
    assert hasattr(DeploymentHandle, "_init"), "DeploymentHandle._init is gone: compat_serve.lean"
    names = {field.name for field in fields(InitHandleOptions)}
    assert "_run_router_in_separate_loop" in names, "its option has changed: compat_serve.lean"


@pytest.mark.parametrize("name", LEAN)
def test_a_handle_calls_over_grpc(name):
    known = inspect.signature(DeploymentHandle.options).parameters
    assert name in known, f"DeploymentHandle.options has no {name}: compat_serve.LEAN"


def test_a_call_that_was_taken_can_be_cancelled():
    assert issubclass(DeploymentResponse, _DeploymentResponseBase)
    source = inspect.getsource(_DeploymentResponseBase.__init__)
    assert "self._replica_result_future =" in source, "the response keeps it elsewhere: compat_serve.cancel"


@pytest.mark.parametrize("name", ["_choose_replica_for_request", "_probe_queue_lens"])
def test_a_router_chooses_in_place_of_serves(name):
    theirs = getattr(serve_router.RequestRouter, name, None)
    assert theirs is not None, f"RequestRouter.{name} is gone: compat_serve"
    ours = inspect.signature(getattr(HeadwayRouter, name)).parameters
    assert list(ours) == list(inspect.signature(theirs).parameters), f"RequestRouter.{name} takes others"


def test_a_router_sees_replicas_and_the_name_that_a_caller_gives():
    source = inspect.getsource(serve_router)
    for name in ("self._deployment_id", "self._replicas", "def _event_loop("):
        assert name in source, f"{name} is gone: compat_serve"
    names = {field.name for field in fields(RequestMetadata)}
    assert {"session_id", "internal_request_id"} <= names, "RequestMetadata has changed: compat_serve"
