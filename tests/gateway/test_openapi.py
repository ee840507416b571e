"""The published description: it has every path, and what schemathesis makes of it breaks nothing."""

from collections.abc import Iterator

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

from headway.config import HeadwayConfig
from tests.gateway.one_engine import OneEngine
from tests.gateway.serving import Running, get, post, serving
from tests.patience import PATIENCE_S

CONFIG = HeadwayConfig.model_validate(
    {
        "model": "m",
        "engine": {"time_scale": 50.0},
        "pools": {"mixed": {}},
        "gateway": {"default_max_tokens": 4},
    }
)


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving(CONFIG, OneEngine(CONFIG)) as one:
        yield one


@pytest.mark.parametrize("examples", [6, pytest.param(20, marks=pytest.mark.slow)])
def test_what_fits_the_description_breaks_nothing(running: Running, examples: int) -> None:
    operations = list(schemathesis.openapi.from_url(f"{running.url}/openapi.json").get_all_operations())
    assert len(operations) > 10
    with requests.Session() as session:
        for operation in operations:
            fuzz(operation.ok().as_strategy(), session, examples)


def fuzz(cases: SearchStrategy[schemathesis.Case], session: requests.Session, examples: int) -> None:
    @given(case=cases)
    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def asked(case: schemathesis.Case) -> None:
        if isinstance(case.body, dict):
            # A simulated engine takes as long as it is asked to.
            bounds = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n")
            case.body.update({name: min(case.body[name] or 1, 4) for name in bounds if name in case.body})
        answer = case.call(session=session, timeout=PATIENCE_S)
        assert answer.status_code < 500, (case.body, answer.text)

    asked()


def test_it_says_what_a_body_needs_and_which_paths_need_keys(running: Running) -> None:
    said = get(f"{running.url}/openapi.json").json()
    body = said["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]
    assert body["required"] == ["messages"]
    assert {"tools", "response_format", "max_completion_tokens", "structured_outputs"} <= body[
        "properties"
    ].keys()
    assert "security" not in said["paths"]["/v1/models"]["get"]
    config = HeadwayConfig.model_validate({"model": "m", "gateway": {"api_keys": ["secret"]}})
    with serving(config, OneEngine(config)) as keyed:
        said = get(f"{keyed.url}/openapi.json").json()
        assert said["paths"]["/v1/models"]["get"]["security"] == [{"key": []}]
        assert "security" not in said["paths"]["/ready"]["get"]
        assert post(f"{keyed.url}/v1/completions", json={"prompt": "x"}).status_code == 401


def test_the_page_lists_every_path(running: Running) -> None:
    page = get(f"{running.url}/docs").text
    for path, operations in get(f"{running.url}/openapi.json").json()["paths"].items():
        for method in operations:
            assert f"<code>{method.upper()} {path}</code>" in page
