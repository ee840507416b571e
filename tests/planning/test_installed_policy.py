"""A policy from an installed package: its settings, its interval, and a simulation by its name."""

from pathlib import Path

import pytest

from headway.config import ConfigError, HeadwayConfig, json_schema, load_config
from headway.planning import PlanningError, decision_interval_s, known, make_policy
from headway.planning.policies import refuse_simulated_only
from headway_cli.app import run
from headway_cli.job import Job, execute
from tests.installed_package import installed_package

POLICY = '''
from dataclasses import dataclass

from headway.config import PositiveFloat, PositiveInt, Settings
from headway.planning import Decision, PolicyKind, PolicySettings


class EvenSettings(Settings):
    replicas: PositiveInt = 2
    pace_s: PositiveFloat = 20.0


@dataclass(frozen=True)
class Even:
    """As many replicas in every pool."""

    settings: PolicySettings
    own: EvenSettings
    name = "even"

    @property
    def interval_s(self):
        return self.own.pace_s

    def initial_state(self):
        return 0

    def plan(self, observation, state):
        targets = {role: self.own.replicas for role in self.settings.limits}
        reasons = {
            "decision": state,
            "forecast": observation.forecast is not None,
            "targets": {str(role): count for role, count in targets.items()},
            "summary": "Even.",
        }
        return Decision(targets=targets, next_state=state + 1, reasons=reasons)


def refuse(own):
    return "planner.even.replicas: 13 is unlucky" if own.replicas == 13 else None


EVEN = PolicyKind(
    build=lambda settings, profile: Even(settings, settings.section("even", EvenSettings)),
    settings=EvenSettings,
    interval_key="pace_s",
    forecasts=True,
    refuse_live=refuse,
)
'''


ENTRY_POINTS = """[headway.policies]
even = even_policy:EVEN
broken = even_policy:NOTHING
wrong = even_policy:Even
static = even_policy:EVEN
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path):
    """A package that is installed beside headway, with a policy and one that cannot be loaded."""
    with installed_package(tmp_path, "even_policy", POLICY, ENTRY_POINTS):
        yield


def test_it_runs_by_its_name_with_its_own_settings(tmp_path):
    path = tmp_path / "headway.yaml"
    path.write_text("planner: {policy: even, even: {replicas: 3}}\n")
    document = execute(Job(trace="steady:rate_rps=2,duration_s=100", config=load_config(path))).document()
    assert document["policy"] == "even"
    assert [row["start_s"] for row in document["intervals"]][:3] == [0.0, 20.0, 40.0]
    assert document["intervals"][0]["targets"] == {"prefill": 3, "decode": 3}
    assert document["intervals"][0]["reasons"]["forecast"]


def test_its_settings_have_defaults_and_survive_the_way_to_an_actor():
    assert decision_interval_s(load_config(None, {"planner.policy": "even"}).planner) == 20.0
    config = load_config(None, {"planner.policy": "even", "planner.even.pace_s": 5})
    assert HeadwayConfig.model_validate_json(config.model_dump_json()) == config
    assert decision_interval_s(config.planner) == 5.0


def test_its_section_is_checked_by_its_own_model():
    with pytest.raises(
        ConfigError, match=r"^options: planner\.even\.pace_s: input should be greater than 0, "
    ):
        load_config(None, {"planner.even.pace_s": -1})
    with pytest.raises(ConfigError, match=r"planner\.even\.pace: unknown key; did you mean 'pace_s'"):
        load_config(None, {"planner.even.pace": 3})
    with pytest.raises(ConfigError, match=r"planner\.evn: unknown key; did you mean 'even'"):
        load_config(None, {"planner.evn.pace_s": 3})
    with pytest.raises(ConfigError, match=r"planner\.reference: unknown key; known here: adj"):
        load_config(None, {"planner.reference.pace_s": 3})


def test_it_is_listed_and_published():
    assert "even" in known()
    planner = json_schema()["$defs"]["PlannerSettings"]["properties"]
    assert planner["even"]["$ref"].endswith("EvenSettings")
    assert "broken" not in planner


def test_check_mentions_a_built_in_name_that_it_declares(tmp_path, capsys):
    path = tmp_path / "headway.yaml"
    path.write_text("planner: {policy: even}\n")
    assert run(["check", str(path)]) == 0
    assert (
        "note: policy 'static' of even_policy:EVEN is ignored: the name is built in\n"
        in capsys.readouterr().out
    )


def test_live_operation_refuses_what_the_policy_says():
    refuse_simulated_only(load_config(None, {"planner.even.replicas": 12}))
    with pytest.raises(PlanningError, match=r"planner\.even\.replicas: 13 is unlucky"):
        refuse_simulated_only(load_config(None, {"planner.even.replicas": 13}))


WAKE = {"metrics.source": "prometheus", "metrics.url": "http://p", "metrics.wake": "sum(waiting)"}


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, ""),
        ({"planner.policy": "threshold"}, "planner.policy is threshold"),
        ({"connector.kind": "virtual"}, "connector.kind is virtual"),
        ({"connector.ray_serve.application": "llm"}, "connector.ray_serve names another's application"),
        ({"metrics.url": "http://gateway"}, "metrics come from http://gateway"),
        ({"metrics.source": "prometheus", "metrics.url": "http://p"}, "metrics come from http://p"),
        ({"connector.kind": "virtual", **WAKE}, ""),
        (
            {"connector.kind": "kubernetes", "connector.kubernetes.target": "kuberay", **WAKE},
            "connector.kubernetes.target is kuberay",
        ),
    ],
)
def test_live_pools_may_be_empty_where_something_tells_of_requests_for_them(changes, wrong):
    config = load_config(None, {"pools": {"decode": {"min_replicas": 0}}, **changes})
    if not wrong:
        refuse_simulated_only(config)
        return
    with pytest.raises(PlanningError, match=rf"^pools\.decode\.min_replicas: .*; {wrong}$"):
        refuse_simulated_only(config)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("broken", r"^planner\.policy: policy 'broken' of even_policy:NOTHING cannot be loaded: Attr"),
        ("wrong", r"^planner\.policy: 'wrong' is declared by type, not by a PolicyKind"),
    ],
)
def test_one_that_cannot_be_used_is_one_line(name, fault):
    with pytest.raises(PlanningError, match=fault):
        make_policy(name, None)
    with pytest.raises(ConfigError, match=r"^options: planner: "):
        load_config(None, {f"planner.{name}.x": 3})
