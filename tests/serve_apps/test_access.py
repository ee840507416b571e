"""Keys, roles and the requests that need them; a real gateway asked with the official client."""

import json
import logging
from hashlib import sha256
from pathlib import Path
from typing import Any

import openai
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headway.config import ConfigError, GatewaySettings, HeadwayConfig, Right
from serve_apps.access import Access, make_access, needs, own_scope, read_keys
from serve_apps.faults import Fault, Forbidden, Unauthorized
from tests.gateway.conftest import client
from tests.gateway.doubles import ScriptedBackend, chunks
from tests.gateway.serving import serving

KEYS = """\
- {name: app, key: infer-key, roles: [infer]}
- {name: grafana, key: observe-key, roles: [observe]}
- {name: admin, key: operate-key, roles: [observe, operate]}
- {name: keda, sha256: "%s", roles: [scale]}
"""


def keys_file(folder: Path, text: str | None = None) -> Path:
    path = folder / "keys.yaml"
    path.write_text(KEYS % sha256(b"scale-key").hexdigest() if text is None else text)
    path.chmod(0o600)
    return path


def asking(method: str, path: str, key: str | None = None, root: str = "", **browser: str) -> dict[str, Any]:
    given = {"host": "127.0.0.1:8000", **browser}
    headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()]
    headers += [] if key is None else [(b"authorization", b"Bearer " + key.encode())]
    return {"type": "http", "method": method, "path": path, "root_path": root, "headers": headers}


def refusal(access: Access, scope: dict[str, Any]) -> Fault | None:
    try:
        access.admit(scope)
    except Fault as fault:
        return fault
    return None


GATES = (
    ("GET", "/health", {"none", "infer", "observe", "operate", "scale"}),
    ("GET", "/metrics", {"none", "infer", "observe", "operate", "scale"}),
    ("GET", "/metrics/requests", {"observe", "operate"}),
    ("POST", "/v1/completions", {"infer"}),
    ("POST", "/v1/chat/completions", {"infer"}),
    ("GET", "/v1/models/m", {"infer"}),
    ("GET", "/v1/control/status", {"observe", "operate"}),
    ("HEAD", "/v1/control/decisions/3", {"observe", "operate"}),
    ("PATCH", "/v1/control/settings", {"operate"}),
    ("GET", "/v1/scaling/decisions/next", {"observe", "operate", "scale"}),
    ("POST", "/v1/scaling/decisions/3/complete", {"scale"}),
    ("POST", "/v1/scaling/report", {"scale"}),
    ("DELETE", "/v1/scaling/anything", {"scale"}),
    ("GET", "/nowhere", {"infer", "observe", "operate", "scale"}),
)


@pytest.mark.parametrize(("method", "path", "allowed"), GATES)
def test_each_role_opens_its_requests_and_no_others(tmp_path, method, path, allowed):
    access = Access({}, keys_file(tmp_path))
    asked = {name: asking(method, path, f"{name}-key") for name in ("infer", "observe", "operate", "scale")}
    asked["none"] = asking(method, path)
    found = {name: refusal(access, scope) for name, scope in asked.items()}
    assert {name for name, fault in found.items() if fault is None} == allowed
    refused = {name: fault for name, fault in found.items() if fault is not None}
    assert all(
        isinstance(fault, Unauthorized if name == "none" else Forbidden) for name, fault in refused.items()
    )


def test_a_refusal_names_the_role_that_is_missing(tmp_path):
    fault = refusal(Access({}, keys_file(tmp_path)), asking("PATCH", "/v1/control/settings", "observe-key"))
    assert isinstance(fault, Forbidden)
    assert (fault.status, fault.code) == (403, "missing_role")
    assert str(fault) == "PATCH /v1/control/settings needs the role operate; this key has observe"


def settings(**fields: object) -> GatewaySettings:
    return GatewaySettings.model_validate(fields)


def lets_in(access: Access, key: str | None = None) -> bool:
    return refusal(access, asking("POST", "/v1/completions", key)) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
def test_without_keys_this_machine_gets_in(host):
    assert lets_in(make_access(settings(host=host), {}))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_without_keys_nothing_listens_beyond_it(host):
    with pytest.raises(ConfigError, match="no API keys") as raised:
        make_access(settings(host=host), {})
    assert "\n" not in str(raised.value)
    assert lets_in(make_access(settings(host=host, allow_anonymous=True), {}))
    assert not lets_in(make_access(settings(host=host, api_keys=["k"]), {}))


def test_keys_of_settings_and_environment_add_up():
    access = make_access(settings(api_keys=["a"]), {"HEADWAY_API_KEYS": "b, c ,,"})
    for key in ("a", "b", "c"):
        assert lets_in(access, key)
    for key in ("", "d", "a,b", "b, c"):
        assert not lets_in(access, key)


@pytest.mark.parametrize("key", ["", "  ", "**********"])
def test_a_masked_key_is_no_key(key):
    with pytest.raises(ConfigError, match="masked"):
        make_access(settings(api_keys=[key]), {})


def test_keys_of_the_settings_infer_and_observe():
    access = make_access(settings(api_keys=["k"]), {"HEADWAY_API_KEYS": "e"})
    for key in ("k", "e"):
        assert refusal(access, asking("POST", "/v1/completions", key)) is None
        assert refusal(access, asking("GET", "/v1/control/status", key)) is None
        assert isinstance(refusal(access, asking("PATCH", "/v1/control/settings", key)), Forbidden)
        assert isinstance(refusal(access, asking("POST", "/v1/scaling/decisions/0/complete", key)), Forbidden)


def test_what_is_checked_is_what_is_routed():
    scope = own_scope(asking("PATCH", "/a//v1/control/settings", root="/a/"))
    assert (scope["path"], scope["root_path"]) == ("//v1/control/settings", "")
    assert own_scope(asking("GET", "/a/v1/models", root="/a"))["path"] == "/v1/models"
    assert own_scope(asking("GET", "/ab", root="/a"))["path"] == "/ab"


def test_a_key_has_the_name_of_its_entry(tmp_path):
    def named(access: Access, key: str | None = None) -> str:
        return access.admit(asking("GET", "/v1/control/status", key)).name

    access = Access({}, keys_file(tmp_path))
    assert named(access, "operate-key") == "admin"
    assert named(make_access(settings(api_keys=["k"]), {}), "k") == "a key without a name"
    assert named(make_access(GatewaySettings(), {})) == "unauthenticated on loopback"
    open_to_all = settings(host="0.0.0.0", allow_anonymous=True)
    assert named(make_access(open_to_all, {})) == "unauthenticated"


def test_a_key_without_a_name_is_a_tenant_by_its_digest() -> None:
    access = make_access(settings(api_keys=["one", "two"]), {})
    assert access.tenants == {f"key-{sha256(key).hexdigest()[:8]}" for key in (b"one", b"two")}
    holder = access.admit(asking("POST", "/v1/completions", "one"))
    assert (holder.tenant, holder.name) == (
        f"key-{sha256(b'one').hexdigest()[:8]}",
        "a key without a name",
    )
    assert make_access(settings(), {}).admit(asking("GET", "/v1/models")).tenant == "anonymous"


@pytest.mark.parametrize("name", ["a/b", "*", "a\tb", "n" * 129])
def test_a_key_is_not_named_as_what_is_no_tenant(tmp_path: Path, name: str) -> None:
    path = keys_file(tmp_path, json.dumps([{"name": name, "key": "k", "roles": ["infer"]}]))
    with pytest.raises(ConfigError, match=r"entry 1: name: .*without '/'") as raised:
        make_access(settings(keys_file=str(path)), {})
    assert "\n" not in str(raised.value)


def test_a_key_in_two_places_has_the_roles_of_both(tmp_path):
    path = keys_file(tmp_path, "- {name: a, key: k, roles: [scale]}\n")
    access = make_access(settings(api_keys=["k"], keys_file=str(path)), {})
    assert access.admit(asking("GET", "/", "k")).rights == {Right.INFER, Right.OBSERVE, Right.SCALE}


def test_the_file_is_read_again_when_it_changes_and_a_bad_one_changes_nothing(tmp_path, caplog):
    now, path = [0.0], keys_file(tmp_path, "- {name: a, key: old, roles: [infer]}\n")
    access = Access({}, path, lambda: now[0])

    def infers(key: str) -> bool:
        now[0] += 1.1
        return refusal(access, asking("POST", "/v1/completions", key)) is None

    assert infers("old")
    keys_file(tmp_path, "- {name: a, key: newer, roles: [infer]}\n")
    assert infers("newer")
    assert not infers("old")
    for broken in ("", "- {name: a, roles: [infer]}\n", "[", "- {name: a, key: secret, roles: [root]}\n"):
        caplog.clear()
        keys_file(tmp_path, broken)
        assert infers("newer")
        assert "the keys stay as they were" in caplog.text
        assert "secret" not in caplog.text
    path.unlink()
    assert infers("newer")


def test_a_file_that_others_may_read_is_warned_of_once_for_all_deployments(tmp_path, caplog):
    path = keys_file(tmp_path)
    Access({}, path)
    assert not caplog.records
    path.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            Access({}, path)
    (said,) = caplog.messages
    assert "mode 0644" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "should be a list"),
        ("a: 1", "should be a list"),
        ("[{", "is not YAML, line 1"),
        ("- {name: a, key: hush}", "entry 1: roles"),
        ("- {name: a, key: hush, roles: [root]}", "entry 1: roles"),
        ("- {name: a, key: hush, sha256: x, roles: [infer]}", "entry 1: sha256"),
        ("- {name: a, key: '***', roles: [infer]}", "masked"),
        ("- {name: a, roles: [infer]}", "needs either key or sha256"),
        (
            "- {name: a, key: hush, roles: [infer]}\n- {name: a, key: h2, roles: [infer]}",
            "'a' is there twice",
        ),
        ("- {name: a, keys: hush, roles: [infer]}", "did you mean 'key'"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line_without_the_key(tmp_path, text, said):
    with pytest.raises(ConfigError) as raised:
        read_keys(keys_file(tmp_path, text))
    assert str(raised.value).startswith(f"gateway.keys_file: {tmp_path}")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "hush" not in str(raised.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        make_access(settings(keys_file=str(tmp_path / "none")), {})


def test_every_path_that_is_served_has_a_role(tmp_path):
    assert needs("GET", "/ready") is None
    assert needs("GET", "/metrics/") == frozenset(Right)
    assert needs("POST", "/metrics/requests") == frozenset(Right)


OWN = {"host": "localhost:8000", "origin": "http://localhost:8000", "sec_fetch_site": "same-origin"}
ELSEWHERE = {"host": "127.0.0.1:8000", "origin": "http://evil.test", "sec_fetch_site": "cross-site"}


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize(
    ("sent", "admitted"),
    [
        (OWN, True),
        (ELSEWHERE, False),
        ({"host": "127.0.0.1:8000", "origin": "null"}, False),
        ({"host": "localhost:8000", "origin": "http://localhost:3000"}, False),
        ({"host": "localhost:8000", "sec_fetch_site": "same-site"}, False),
        ({"host": "[::1]:8000"}, True),
    ],
)
def test_a_page_of_another_origin_changes_nothing(tmp_path, keyed, sent, admitted):
    access = make_access(settings(keys_file=str(keys_file(tmp_path))) if keyed else settings(), {})
    key = "operate-key" if keyed else None
    fault = refusal(access, asking("PATCH", "/v1/control/settings", key, **sent))
    assert (fault is None) is admitted
    key = "scale-key" if keyed else None
    assert (refusal(access, asking("POST", "/v1/scaling/report", key, **sent)) is None) is admitted


def test_without_keys_another_name_that_leads_here_is_none_of_ours(tmp_path):
    led = asking("GET", "/v1/control/status", host="evil.test:8000")
    fault = refusal(make_access(settings(), {}), led)
    assert isinstance(fault, Forbidden)
    assert "'evil.test': add it to gateway.hosts, or set keys" in str(fault)
    assert refusal(make_access(settings(hosts=["Evil.test"]), {}), led) is None
    keyed = asking("GET", "/v1/control/status", "observe-key", host="headway.llm.svc:8000")
    assert refusal(Access({}, keys_file(tmp_path)), keyed) is None
    assert refusal(make_access(settings(), {}), asking("GET", "/v1/models", host="evil.test")) is None


async def _patched(request: Request) -> Response:
    return JSONResponse({"by": request.scope["user"]})


def test_the_official_client_meets_the_roles(tmp_path):
    config = HeadwayConfig.model_validate({"model": "m", "gateway": {"keys_file": str(keys_file(tmp_path))}})
    routes = [Route("/v1/control/settings", _patched, methods=["PATCH"])]
    with serving(config, ScriptedBackend(chunks("a")), routes) as running:
        with client(running, api_key="infer-key") as api:
            assert api.completions.create(model="m", prompt="x").choices[0].text == "a"
            with pytest.raises(openai.PermissionDeniedError) as raised:
                api.patch("/control/settings", cast_to=object, body={"planner.dry_run": True})
            assert raised.value.code == "missing_role"
        with client(running, api_key="operate-key") as api:
            assert api.patch("/control/settings", cast_to=object, body={}) == {"by": "admin"}
            with pytest.raises(openai.PermissionDeniedError):
                api.models.list()
        with client(running, api_key="wrong") as api, pytest.raises(openai.AuthenticationError):
            api.models.list()


def test_limits_of_keys_are_shared_among_gateways(tmp_path: Path) -> None:
    path = keys_file(
        tmp_path,
        "- {name: a, key: k, roles: [infer], limits: {requests_at_once: 3, tokens_per_minute: 90}}\n",
    )
    two = settings(keys_file=str(path), replicas=2)
    limits = make_access(two).admit(asking("GET", "/", "k")).limits
    assert limits is not None
    assert (limits.requests_at_once, limits.tokens_per_minute) == (1, 45)
    with pytest.raises(ConfigError, match=r"a: limits: requests_at_once: 3 is too little to share among 4"):
        make_access(settings(keys_file=str(path), replicas=4))
