"""Grafana's dashboards from dashboards.yaml, and what Kubernetes gets of them and of rules.yaml.

    python -m examples.observability.dashboards

writes dashboards/*.json, kubernetes/dashboards.yaml and kubernetes/rules.yaml. A panel is a title, PromQL by
legend, a unit and a width. Panels are laid out from left to right on 24 columns; ids count up.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

HERE = Path(__file__).parent
GENERATED = "# Made by `python -m examples.observability.dashboards`.\n"
Kind = Literal["timeseries", "stat", "table", "state-timeline", "status-history", "heatmap"]
Json = dict[str, Any]
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24
SCHEMA_VERSION = 39
"""Of Grafana 11; later versions read it."""

INSTANT: frozenset[Kind] = frozenset({"stat", "table"})
NAMES = '__name__=~"headway_control_plane_up|headway_requests_in_flight"'
"""One of them is there wherever Headway is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """`queries`: PromQL by legend. `unit` as Grafana names it; from `at` on the value is red.

    `names`: a stat shows its legend instead of the value. `zero`: the axis begins at 0.
    """

    title: str
    queries: Mapping[str, str]
    kind: Kind = "timeseries"
    unit: str = "short"
    width: int = 8
    height: int = 8
    about: str = ""
    stacked: bool = False
    names: bool = False
    zero: bool = True
    at: float | None = None

    def document(self, number: int, x: int, y: int, selector: str) -> Json:
        """The panel as Grafana has it, at this place; `selector` stands for OF in its queries."""
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.about,
            "datasource": DATASOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "targets": [
                self._target(place, legend, query.replace("{OF", f"{{{selector}"))
                for place, (legend, query) in enumerate(self.queries.items())
            ],
            "fieldConfig": {"defaults": self._defaults(), "overrides": []},
            "options": self._options(),
        }

    def _target(self, place: int, legend: str, expression: str) -> Json:
        instant = self.kind in INSTANT
        form = {"table": "table", "heatmap": "heatmap"}.get(self.kind, "time_series")
        return {
            "refId": chr(ord("A") + place),
            "datasource": DATASOURCE,
            "expr": expression,
            "legendFormat": legend,
            "format": form,
            "instant": instant,
            "range": not instant,
        }

    def _defaults(self) -> Json:
        defaults: Json = {"unit": self.unit, "thresholds": self._thresholds()}
        if self.zero:
            defaults["min"] = 0
        if self.kind == "timeseries":
            defaults["custom"] = {
                "drawStyle": "line",
                "fillOpacity": 20 if self.stacked else 0,
                "showPoints": "never",
                "spanNulls": False,
                "stacking": {"mode": "normal" if self.stacked else "none", "group": "A"},
                "thresholdsStyle": {"mode": "off" if self.at is None else "line"},
            }
        elif self.kind == "state-timeline":
            states = {"0": {"text": " ", "color": "transparent"}, "1": {"text": "yes", "color": "blue"}}
            defaults["mappings"] = [{"type": "value", "options": states}]
        elif self.kind == "status-history":
            defaults |= {"max": 1, "color": {"mode": "continuous-GrYlRd"}}
        return defaults

    def _thresholds(self) -> Json:
        steps: list[Json] = [{"color": "blue" if self.at is None else "green", "value": None}]
        if self.at is not None:
            steps.append({"color": "red", "value": self.at})
        return {"mode": "absolute", "steps": steps}

    def _options(self) -> Json:
        legend = {"displayMode": "list", "placement": "bottom", "showLegend": True}
        last = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        by_kind: Mapping[Kind, Json] = {
            "timeseries": {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}},
            "stat": {
                "reduceOptions": last,
                "textMode": "name" if self.names else "value_and_name",
                "colorMode": "value",
                "graphMode": "none",
                "justifyMode": "auto",
                "orientation": "auto",
            },
            "table": {"showHeader": True},
            "state-timeline": {"showValue": "never", "mergeValues": True, "legend": legend},
            "status-history": {"showValue": "never", "rowHeight": 0.9, "colWidth": 1.0, "legend": legend},
            "heatmap": {"calculate": False, "yAxis": {"unit": self.unit}, "color": {"scheme": "Blues"}},
        }
        return by_kind[self.kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A dashboard; `rows` are panels by title. `many`: the variable model takes several."""

    name: str
    about: str
    rows: Mapping[str, Sequence[Panel]]
    many: bool = False

    def document(self) -> Json:
        """The dashboard as Grafana imports it."""
        return {
            "uid": f"headway-{self.name}",
            "title": f"Headway: {self.name}",
            "description": self.about,
            "tags": ["headway"],
            "schemaVersion": SCHEMA_VERSION,
            "editable": True,
            "refresh": "30s",
            "time": {"from": "now-6h", "to": "now"},
            "timezone": "browser",
            "links": [
                {
                    "title": "Headway",
                    "type": "dashboards",
                    "tags": ["headway"],
                    "asDropdown": True,
                    "includeVars": True,
                    "keepTime": True,
                }
            ],
            "templating": {"list": self._variables()},
            "panels": self._panels(),
        }

    def _panels(self) -> list[Json]:
        panels: list[Json] = []
        selector = f'namespace=~"$namespace", model{"=~" if self.many else "="}"$model"'
        y = 0
        for title, row in self.rows.items():
            panels.append(_row(len(panels) + 1, title, y))
            x, y, height = 0, y + 1, 0
            for panel in row:
                if x + panel.width > COLUMNS:
                    x, y, height = 0, y + height, 0
                panels.append(panel.document(len(panels) + 1, x, y, selector))
                x, height = x + panel.width, max(height, panel.height)
            y += height
        return panels

    def _variables(self) -> list[Json]:
        source = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
        namespaces = f"label_values({{{NAMES}}}, namespace)"
        models = f'label_values({{{NAMES}, namespace=~"$namespace"}}, model)'
        return [source, _query("namespace", namespaces, every=True), _query("model", models, every=self.many)]


def _row(number: int, title: str, y: int) -> Json:
    place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _query(name: str, query: str, *, every: bool) -> Json:
    """A variable with the values of a label; `every`: several, or all of them."""
    variable: Json = {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": every,
        "includeAll": every,
    }
    if every:
        variable |= {"allValue": ".*", "current": {"text": ["All"], "value": ["$__all"]}}
    return variable


def dashboards() -> list[Dashboard]:
    """Those of dashboards.yaml."""
    found = yaml.safe_load((HERE / "dashboards.yaml").read_text(encoding="utf-8"))
    return [_dashboard(name, **each) for name, each in found.items()]


def _dashboard(name: str, *, rows: Mapping[str, Iterable[Json]], **settings: Any) -> Dashboard:  # noqa: ANN401 - of YAML
    made = {title: [Panel(**panel) for panel in row] for title, row in rows.items()}
    return Dashboard(name=name, rows=made, **settings)


def files() -> Mapping[str, str]:
    """What is made, by path in this folder."""
    made = dashboards()
    shown = {each.name: json.dumps(each.document(), indent=1, ensure_ascii=False) + "\n" for each in made}
    return {
        **{f"dashboards/{name}.json": text for name, text in shown.items()},
        "kubernetes/dashboards.yaml": GENERATED + _documents([_config_map(each) for each in made]),
        "kubernetes/rules.yaml": GENERATED + _documents([_prometheus_rule()]),
    }


def _config_map(dashboard: Dashboard) -> Mapping[str, object]:
    """Grafana's sidecar loads ConfigMaps with this label."""
    name = f"headway-{dashboard.name}"
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{name}-dashboard", "labels": {"grafana_dashboard": "1"}},
        "data": {f"{name}.json": json.dumps(dashboard.document(), ensure_ascii=False)},
    }


def _prometheus_rule() -> Mapping[str, object]:
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "headway", "labels": {"app": "headway"}},
        "spec": yaml.safe_load((HERE / "rules.yaml").read_text(encoding="utf-8")),
    }


def _documents(documents: list[Mapping[str, object]]) -> str:
    return "---\n".join(
        yaml.safe_dump(each, sort_keys=False, width=1000, allow_unicode=True) for each in documents
    )


def main() -> None:
    """Write the files."""
    for path, text in files().items():
        (HERE / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
