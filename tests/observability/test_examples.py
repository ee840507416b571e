"""Dashboards, rules and manifests of examples/observability: as generated, parsed, naming what there is."""

import importlib.util
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples.observability.dashboards import files
from tests.observability.dashboards import EXAMPLES, dashboards, need_promtool, queries, rules
from tests.serve_apps.test_control_metrics import documented

ROOT = EXAMPLES.parents[1]
EXPRESSIONS = [query.expression for query in queries("m")] + [rule["expr"] for rule in rules()]
SUFFIX = re.compile(r"_(bucket|sum|count)$")
TARGET_LABELS = {"namespace", "instance"}
"""Labels that Prometheus and Kubernetes add."""


def test_what_is_committed_is_what_is_generated():
    made = {path: (EXAMPLES / path).read_text(encoding="utf-8") for path in files()}
    assert made == dict(files()), "run python -m examples.observability.dashboards"


@pytest.mark.parametrize("name", ["overview", "deployment", "router", "engines"])
def test_panels_have_a_place_and_an_id_of_their_own(name):
    dashboard = dashboards()[name]
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({each["uid"] for each in dashboards().values()}) == len(dashboards())
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        x, y, width, height = (panel["gridPos"][key] for key in "xywh")
        assert x + width <= 24, panel["title"]
        cells = {(column, row) for column in range(x, x + width) for row in range(y, y + height)}
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or panel["targets"]


def unknown(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """What of ours Grafana's model of a dashboard has not, or has otherwise."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        lost = [f"{path}.{key}" for key in ours if key not in theirs]
        return lost + [
            each for key in ours if key in theirs for each in unknown(ours[key], theirs[key], f"{path}.{key}")
        ]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [each for place, pair in pairs for each in unknown(*pair, f"{path}[{place}]")]
    return [] if ours == theirs else [path]


@pytest.fixture(scope="module")
def grafana() -> Any:
    """A dashboard through Grafana's own types and back."""
    if importlib.util.find_spec("grafana_foundation_sdk") is None:
        missing = "grafana-foundation-sdk is not installed: make setup"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    return lambda document: json.loads(json.dumps(Dashboard.from_json(document), cls=JSONEncoder))


@pytest.mark.parametrize("name", ["overview", "deployment", "router", "engines"])
def test_grafanas_own_types_know_every_key(name, grafana):
    dashboard = dashboards()[name]
    assert unknown(dashboard, grafana(dashboard)) == []
    dashboard["panels"][1]["fieldConfig"]["defaults"]["units"] = "s"
    assert unknown(dashboard, grafana(dashboard)) == [".panels[1].fieldConfig.defaults.units"]


def test_every_query_parses(tmp_path: Path):
    file = tmp_path / "queries.yaml"
    checked = [{"record": f"query:{place}", "expr": text} for place, text in enumerate(EXPRESSIONS)]
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": checked}]}))
    said = subprocess.run(
        [need_promtool(), "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr
    assert f"{len(EXPRESSIONS)} rules found" in said.stdout


def test_queries_name_metrics_and_labels_that_there_are():
    known = {name: set(labels) for name, (_, labels) in documented().items()}
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for expression in EXPRESSIONS:
        for name, matchers in re.findall(r"\b(headway[\w:]+)(\{[^}]*\})?", expression):
            if ":" in name:
                assert name in recorded, expression
                continue
            metric = name if name in known else SUFFIX.sub("", name)
            assert metric in known, expression
            matched = set(re.findall(r"(\w+)\s*(?:=~|!=|=)", matchers))
            assert matched <= known[metric] | TARGET_LABELS, (name, matched)


@pytest.mark.slow
def test_the_rules_do_what_their_test_says():
    said = subprocess.run(
        [need_promtool(), "test", "rules", "tests/observability/rules_test.yaml"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert said.returncode == 0, said.stdout + said.stderr


def test_every_alert_is_tested_both_ways_and_explained():
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    text = (ROOT / "tests" / "observability" / "rules_test.yaml").read_text(encoding="utf-8")
    cases = [case for test in yaml.safe_load(text)["tests"] for case in test.get("alert_rule_test", ())]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == alerts
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == alerts
    page = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(Headway\w+)` \|", page, re.M)) == alerts
    for rule in rules():
        assert "record" in rule or (
            rule["labels"]["severity"] in ("page", "ticket") and rule["annotations"]["summary"]
        )


def test_the_prometheus_of_compose_takes_its_configuration():
    config = str(EXAMPLES / "prometheus.yaml")
    said = subprocess.run(
        [need_promtool(), "check", "config", config], capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr


def test_compose_mounts_what_there_is_where_grafana_looks():
    services = yaml.safe_load((EXAMPLES / "compose.yaml").read_text(encoding="utf-8"))["services"]
    mounts = [each.split(":") for service in services.values() for each in service["volumes"]]
    inside = {source: target for source, target, *_ in mounts if source.startswith(".")}
    assert all((EXAMPLES / source).exists() for source in inside)
    provider = yaml.safe_load((EXAMPLES / "provisioning/dashboards/headway.yaml").read_text())["providers"][0]
    assert provider["options"]["path"] == inside["./dashboards"]
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{inside['./dashboards']}/overview.json"
    source = yaml.safe_load((EXAMPLES / "provisioning/datasources/prometheus.yaml").read_text())
    listens = next(each for each in services["prometheus"]["command"] if "listen-address" in each)
    assert source["datasources"][0]["url"] == f"http://{listens.partition('=')[2]}"


def test_the_manifests_hold_the_same_and_select_the_service():
    maps = [*yaml.safe_load_all((EXAMPLES / "kubernetes/dashboards.yaml").read_text(encoding="utf-8"))]
    held = {name: json.loads(text) for each in maps for name, text in each["data"].items()}
    assert held == {f"headway-{name}.json": document for name, document in dashboards().items()}
    rule = yaml.safe_load((EXAMPLES / "kubernetes/rules.yaml").read_text(encoding="utf-8"))
    assert [each for group in rule["spec"]["groups"] for each in group["rules"]] == rules()
    monitor = yaml.safe_load((EXAMPLES / "kubernetes/monitor.yaml").read_text(encoding="utf-8"))["spec"]
    attached = yaml.safe_load_all((ROOT / "examples/kubernetes/attach.yaml").read_text(encoding="utf-8"))
    service = next(each for each in attached if each["kind"] == "Service")
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert {each["port"] for each in monitor["endpoints"]} <= {
        each["name"] for each in service["spec"]["ports"]
    }
