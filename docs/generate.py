"""The parts of docs/reference that are made from code: `python -m docs.generate` writes them.

A page holds explanation by hand, and blocks between `<!-- made: NAME -->` and `<!-- end -->`:

    settings KEY     a table of the configuration below a key; `settings .` has the keys of one value
    verb NAME        a verb's flags; `verb run` those that `simulate` and `compare` share
    verbs            all verbs with their summaries
    paths            every HTTP path, from the routes
    metrics PART     control, gateway or vllm: the metric families of that collector

Names, types, bounds, defaults and words come from the settings' models (through `headway schema`), the verbs'
flags, the routes' docstrings and the help texts of the metrics. `docs/NAME.md#part` in them becomes a link.
"""

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.routing import Route

from headway.config import HeadwayConfig, json_schema
from headway_cli.app import GROUPS, load_verb
from headway_cli.options import KEYS, RunOptions
from serve_apps.access import needs
from serve_apps.control_api import control_routes, scaling_routes
from serve_apps.control_metrics import ControlMetrics, StatusFeed
from serve_apps.engines.vllm.metrics import VllmMetrics
from serve_apps.gateway.app import Service, make_service
from serve_apps.gateway.responses import ENDPOINTS
from serve_apps.gateway.state import make_state
from serve_apps.live_page import LivePage
from serve_apps.routed.metrics import RoutingCounts, RoutingMetrics
from serve_apps.tracing.spans import SpanCounts

PAGES = Path(__file__).parent / "reference"
BLOCK = re.compile(
    r"(?P<begin><!-- made: (?P<name>\w+) ?(?P<of>\S*) -->\n).*?(?P<end><!-- end -->)", re.DOTALL
)
BEYOND = 1e18
"""A bound above this is one of number formats, and of no interest."""
PAGE = re.compile(r"docs/((?:reference/)?[\w-]+\.md)(#[\w-]+)?")
PARAMETER = re.compile(r"\{[^}]+\}")
Schema = Mapping[str, Any]
Row = Sequence[str]


def table(head: Row, rows: Iterable[Row]) -> str:
    """A Markdown table; cells may hold bars and line breaks."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(text: str) -> str:
    return _linked(" ".join(text.split()).replace("|", r"\|"))


def _linked(text: str) -> str:
    """Names of pages as links, as seen from docs/reference."""

    def link(found: re.Match[str]) -> str:
        page, anchor = found[1], found[2] or ""
        target = page.removeprefix("reference/") if page.startswith("reference/") else f"../{page}"
        return f"[{page.rpartition('/')[2]}]({target}{anchor})"

    return PAGE.sub(link, text)


# Settings


def settings(key: str) -> str:
    """The settings below a key of the file: name, values, default, meaning."""
    schema = json_schema()
    node = schema["properties"][key]
    intro = ""
    if name := _model(node):
        intro = _linked(" ".join(schema["$defs"][name].get("description", "").split())) + "\n\n"
    return intro + table(("key", "values", "default", "meaning"), _keys(schema, schema, "", only=key))


def _keys(schema: Schema, node: Schema, prefix: str, only: str = "") -> Iterator[Row]:
    for key, value in node["properties"].items():
        if only and key != only:
            continue
        name, models = prefix + key, schema["$defs"]
        inner = _model(value)
        if inner is None or value.get("description"):
            default = "needed" if key in node.get("required", ()) else _default(name, value)
            yield f"`{name}`", _values(value), default, value.get("description", "")
        if inner is not None:
            yield from _keys(schema, models[inner], f"{name}.")
        for items, part in ((value.get("items"), "[]"), (value.get("additionalProperties"), _named(value))):
            if isinstance(items, Mapping) and (inner := _model(items)):
                yield from _keys(schema, models[inner], f"{name}{part}.")


def _model(value: Schema) -> str | None:
    """The model that a value is, or may be beside null."""
    references = [one["$ref"] for one in (value, *value.get("anyOf", ())) if "$ref" in one]
    return references[0].rpartition("/")[2] if references else None


def _named(value: Schema) -> str:
    return ".ROLE" if "propertyNames" in value else ".NAME"


def _values(value: Schema) -> str:
    """The values that a key takes, null apart, which is a default's."""
    forms = [one for one in value.get("anyOf", (value,)) if one.get("type") != "null"]
    return " or ".join(dict.fromkeys(map(_form, forms)))


def _form(value: Schema) -> str:
    if "enum" in value or "const" in value:
        return ", ".join(f"`{name}`" for name in value.get("enum", [value.get("const")]))
    kind = value.get("type")
    if kind in ("number", "integer"):
        return _number(value, whole=kind == "integer")
    if kind == "object" and "propertyNames" in value:
        return "by role"
    return {"string": "text", "boolean": "true, false", "array": "a list"}.get(str(kind), "keys and values")


def _number(value: Schema, *, whole: bool) -> str:
    least, above = value.get("minimum", value.get("ge")), value.get("gt", value.get("exclusiveMinimum"))
    most, below = value.get("maximum", value.get("le")), value.get("exclusiveMaximum", value.get("lt"))
    if below is not None and below > BEYOND:
        below = None
    if whole and least is None and above is not None:
        least = above + 1
    low = f"{_short(least)} to" if least is not None else f"above {_short(above or 0)}, up to"
    if most is None and below is None:
        low = f"{_short(least)} or more" if least is not None else f"above {_short(above or 0)}"
    high = (
        "" if most is None and below is None else _short(most) if below is None else f"below {_short(below)}"
    )
    return f"{'whole, ' if whole else ''}{low} {high}".strip()


def _short(number: float) -> str:
    return re.sub(r"e\+?0*", "e", f"{number:g}")


def _default(name: str, value: Schema) -> str:
    if "default" not in value:
        # Made anew for each file: the keys of the mapping that the defaults hold.
        found: Any = HeadwayConfig()
        for part in name.split("."):
            found = getattr(found, part)
        return ", ".join(found) or "{}"
    default = value["default"]
    if isinstance(default, str):
        return f"`{default}`" if default else "empty"
    if isinstance(default, bool) or default is None:
        return {True: "true", False: "false", None: "null"}[default]
    return _short(default) if isinstance(default, int | float) else "{}" if default == {} else "[]"


# Verbs


def verbs(_: str) -> str:
    """All verbs by group, each with its summary and a link to its flags."""
    rows = [
        (f"**{group}**", "") if name is None else (f"[`{name}`](#{name})", _linked(summary))
        for group, entries in GROUPS.items()
        for name, summary in ((None, ""), *entries.items())
    ]
    return table(("verb", "does"), rows)


def verb(name: str) -> str:
    """The arguments and flags of a verb, and of those below it."""
    shared = {item.name for item in fields(RunOptions)}
    if name == "run":
        chosen = [each for each in load_verb("simulate").params if each.name in shared]
        rows = [(*row, f"`{KEYS[each.name]}`" if each.name in KEYS else "") for each, row in _flags(chosen)]
        return table(("flag", "default", "meaning", "sets"), rows)
    command = load_verb(name)
    text = _linked(" ".join(command.help.split("\n\n")[0].split())) + "\n\n"
    runs = shared <= {each.name for each in command.params}
    own = [each for each in command.params if not (runs and each.name in shared)]
    text += _parameters(own)
    if runs:
        text += "\nAlso the [flags of a run](#flags-of-a-run).\n"
    for below, entry in getattr(command, "commands", {}).items():
        text += f"\n`{name} {below}`: {' '.join(entry.help.split())}\n\n{_parameters(entry.params)}"
    return text


def _parameters(parameters: Sequence[Any]) -> str:
    rows = [row for _, row in _flags(parameters)]
    return table(("flag", "default", "meaning"), rows) if rows else "It has no flags.\n"


def _flags(parameters: Iterable[Any]) -> Iterator[tuple[Any, Row]]:
    for each in parameters:
        flags = [name for name in each.opts if name.startswith("--")]
        metavar = "" if each.metavar is None else f" {each.metavar}"
        name = ", ".join(f"`{flag}{metavar}`" for flag in flags) or f"`{each.metavar}`"
        default = "" if each.default in (None, False) else f"`{each.default}`"
        if isinstance(each.default, float):
            default = f"`{each.default:g}`"
        yield each, (name, "needed" if each.required else default, each.help)


# HTTP


def paths(_: str) -> str:
    """Every path with the role that a key needs, and what it answers."""
    config, nothing = HeadwayConfig(), SimpleNamespace(replicas=tuple)
    live = LivePage(nothing, StatusFeed(_status)).routes()
    extra = [*control_routes(nothing), *scaling_routes(nothing), *live]
    routes = [
        each
        for each in make_service(
            Service(make_state(config, nothing, time.monotonic)), extra, config.model
        ).routes
        if isinstance(each, Route)
    ]
    generation = [each.path for each in ENDPOINTS]
    rows = [_path("POST", path, "OpenAI's API: output, streamed or not.") for path in generation]
    for route in routes:
        if route.path not in generation:
            method = min(set(route.methods or ()) - {"HEAD"})
            rows.append(_path(method, route.path, route.endpoint.__doc__ or ""))
    return table(("request", "role", "answers"), rows)


def _path(method: str, path: str, text: str) -> Row:
    roles = needs(method, path)
    role = "none" if roles is None else " or ".join(f"`{role}`" for role in sorted(roles))
    return f"`{method} {PARAMETER.sub('ID', path)}`", role, text


# Metrics


async def _status() -> Mapping[str, Any]:
    return {"planner": {"state": "running"}}


def metrics(part: str) -> str:
    """The metric families of a collector: name, type, labels, help text."""
    config = HeadwayConfig()
    state = make_state(config, SimpleNamespace(replicas=tuple), time.monotonic)
    spans = SpanCounts(config.model, {"sent": 0, "failed": 0, "dropped": 0})
    collectors: Mapping[str, Callable[[], Sequence[Collector]]] = {
        "control": lambda: [_control()],
        "gateway": lambda: [state.metrics, RoutingMetrics(config.model, RoutingCounts), spans],
        "vllm": lambda: [VllmMetrics(config.model, state.traffic, state.metrics)],
    }
    found = (_family(family) for each in collectors[part]() for family in each.collect())
    return table(("name", "type", "labels", "meaning"), found)


def _control() -> ControlMetrics:
    feed = StatusFeed(_status)
    asyncio.run(feed.refresh())
    return ControlMetrics("", feed)


def _family(family: Metric) -> Row:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    # A family without samples shows its labels nowhere else.
    labels = ", ".join(f"`{label}`" for label in family._labelnames)
    return f"`{name}`", family.type, labels, family.documentation


BLOCKS = {"settings": settings, "verbs": verbs, "verb": verb, "paths": paths, "metrics": metrics}


def filled(text: str) -> str:
    """A page with its blocks as the code makes them. KeyError for a block of no known kind."""
    return BLOCK.sub(lambda found: found["begin"] + BLOCKS[found["name"]](found["of"]) + found["end"], text)


def pages() -> dict[Path, str]:
    """Each page of docs/reference as it should be."""
    return {page: filled(page.read_text(encoding="utf-8")) for page in sorted(PAGES.glob("*.md"))}


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
