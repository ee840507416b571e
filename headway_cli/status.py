"""`headway status` and `page`: what the status document says, and its pools and latencies as tables."""

import webbrowser
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from json import dumps
from time import sleep
from typing import Annotated
from urllib.parse import quote

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from headway.planning import Role
from headway.planning.documents import FleetInShort, PoolStatus, StatusDocument, VerdictFigures
from headway.planning.records import ClassFigures, LatencyFigures, MeasuredFigures, SloFigures
from headway.words import milliseconds, percent, plural, shown
from headway_cli.control import KEY_VARIABLE, ControlClient, KeyVariable, UrlOption, client, parse
from headway_cli.errors import CliError
from headway_cli.flags import argument, switch
from headway_cli.terminal import bold, console, table

PATH, FLEET_PATH = "/v1/control/status", "/v1/fleet"
PERIOD_S = 1.0
UNWELL = 1
"""Exit code of `--check` where somebody should look."""

COUNTS = ("desired", "starting", "ready", "draining", "running", "waiting")


def status(
    name: Annotated[
        str | None, argument("[NAME]", "One deployment of a fleet; default: all of them in short.")
    ] = None,
    *,
    url: UrlOption = None,
    api_key_env: KeyVariable = KEY_VARIABLE,
    json: Annotated[bool, switch("--json", "Print the document as the server sends it.")] = False,
    watch: Annotated[bool, switch("--watch", "Show it once a second until Ctrl-C.")] = False,
    check: Annotated[
        bool, switch("--check", "Print the health alone; exit with 1 where somebody should look.")
    ] = False,
) -> int:
    """Show a running deployment: its health, pools, SLO attainment, the last decision and why."""
    server = client(url, api_key_env)
    if name is not None:
        server = replace(server, url=f"{server.url.rstrip('/')}/deployments/{name}")
    path = PATH if name is not None or server.find(FLEET_PATH) is None else FLEET_PATH
    if json:
        print(dumps(server.get(path), indent=1))
        return 0
    if check:
        return _checked(read_status(server) if path == PATH else read_fleet(server))
    show = partial(_shown, server, path)
    view = show()
    if watch:
        _watch(show)
    else:
        console().print(view)
    return 0


def _shown(server: ControlClient, path: str) -> RenderableType:
    if path == PATH:
        return status_view(read_status(server), server.url)
    return fleet_view(read_fleet(server), server.url)


def _checked(document: StatusDocument | FleetInShort) -> int:
    if isinstance(document, FleetInShort):
        return max(
            (_checked_one(each.verdict, f"{each.deployment}: ") for each in document.deployments), default=0
        )
    return _checked_one(document.verdict)


def _checked_one(verdict: VerdictFigures | None, name: str = "") -> int:
    if verdict is None:
        raise CliError(f"{name}the server reports no health: it runs an older version, or no planner answers")
    print(f"{name}{verdict.text}")
    return 0 if verdict.well else UNWELL


def page(*, url: UrlOption = None, api_key_env: KeyVariable = KEY_VARIABLE) -> None:
    """Open the live page of a running deployment in a browser."""
    server = client(url, api_key_env)
    read_status(server)
    # Browsers keep what stands behind # to themselves.
    key = "" if server.api_key is None else f"#key={quote(server.api_key, safe='')}"
    print(f"{server.url.rstrip('/')}/")
    if not webbrowser.open(f"{server.url.rstrip('/')}/{key}"):
        raise CliError("there is no browser here: open the address on a machine that has one")


def read_status(server: ControlClient) -> StatusDocument:
    """The status of a running deployment."""
    return parse(StatusDocument, server.get(PATH), server, PATH)


def read_fleet(server: ControlClient) -> FleetInShort:
    """All deployments of a fleet."""
    return parse(FleetInShort, server.get(FLEET_PATH), server, FLEET_PATH)


def _watch(show: Callable[[], RenderableType]) -> None:
    with Live(console=console(), auto_refresh=False) as live:
        while True:
            try:
                view = show()
            except CliError as error:  # a server that restarts is watched on
                view = Text(str(error), style="bold red")
            live.update(view, refresh=True)
            sleep(PERIOD_S)


def status_view(document: StatusDocument, url: str) -> RenderableType:
    """Everything about a deployment on one screen."""
    lines = [bold(f"{document.model} at {url}")]
    if document.verdict is not None:
        lines.append(Text(document.verdict.text, style="bold green" if document.verdict.well else "bold red"))
    lines += [Text(text, style="bold yellow") for text in document.warnings]
    margin = max((len(fact.name) for fact in document.facts), default=0) + 2
    before = ""
    for fact in document.facts:
        name = "" if fact.name == before else fact.name
        lines.append(Text(f"{name:<{margin}}{fact.text}", style="" if fact.ok else "bold red"))
        before = fact.name
    return Group(*lines, pool_table(document.pools), *latency_tables(document))


FLEET_HEAD = ("deployment", "state", "requests/s", "within SLO", "replicas", "GPUs", "wants")


def fleet_view(fleet: FleetInShort, url: str) -> RenderableType:
    """A line for each deployment, and what it lacks of the common budget."""
    rows = [
        (
            each.deployment,
            each.verdict.state if each.verdict else each.planner or "unknown",
            shown(each.requests_per_s),
            percent(each.attainment),
            ", ".join(
                f"{role} {shown(pool.ready)} of {shown(pool.desired)}" for role, pool in each.pools.items()
            ),
            f"{each.budget.holds} {each.budget.gpu_type}".rstrip() if each.budget else shown(None),
            shown(each.budget.wanted if each.budget else None),
        )
        for each in fleet.deployments
    ]
    budgets = fleet.by_type or ({} if fleet.gpus is None else {"": fleet.gpus})
    holds = {
        each: sum(one.budget.holds for one in fleet.deployments if one.budget and one.budget.gpu_type == each)
        for each in budgets
    }
    parts = (f"{holds[each]} of {plural(gpus, f'{each} GPU'.lstrip())}" for each, gpus in budgets.items())
    budget = f", {', '.join(parts)} held" if budgets else ""
    lacks = [
        f"{each.deployment} {each.budget.words}"
        for each in fleet.deployments
        if each.budget and each.budget.words
    ]
    budget += fleet.room and f"; {fleet.room}"
    head = bold(f"{plural(len(fleet.deployments), 'deployment')} at {url}{budget}")
    return Group(head, table(FLEET_HEAD, rows, names=2), *map(Text, lacks))


def pool_table(pools: Mapping[Role, PoolStatus]) -> RenderableType:
    """Replicas and load per pool."""
    rows = (
        (
            role,
            *(shown(getattr(pool, name)) for name in COUNTS),
            percent(pool.kv_usage),
        )
        for role, pool in pools.items()
    )
    return table(("pool", *COUNTS, "KV usage"), rows, dense=False)


LATENCIES = ("TTFT p50/p95/p99", "target", "ITL p50/p95/p99", "target")


def latency_tables(document: StatusDocument) -> Iterator[RenderableType]:
    """Latencies of the last interval in milliseconds beside their targets, of all requests and by class."""
    measured, slo = document.measured, document.slo
    if measured is None or (measured.ttft_s.p95 is None and not measured.classes):
        return
    every = ("all", shown(measured.requests), percent(document.attainment.last_interval))
    rows = [(*every, percent(slo.attainment), *latency_cells(measured, slo))]
    for name, found in measured.classes.items():
        own = slo.of_class(name)
        counts = (name, shown(found.requests), percent(found.attainment), percent(own.attainment))
        rows.append((*counts, *latency_cells(found, own)))
    yield table(("class", "requests", "within SLO", "target", *LATENCIES), rows)


def latency_cells(found: MeasuredFigures | ClassFigures, slo: SloFigures) -> tuple[str, ...]:
    """As LATENCIES, in milliseconds."""
    ttft, itl = map(_quantiles, (found.ttft_s, found.itl_s))
    return (ttft, shown(slo.ttft_ms), itl, shown(slo.itl_ms))


def _quantiles(latency: LatencyFigures) -> str:
    found = (latency.p50, latency.p95, latency.p99)
    return "n/a" if found == (None, None, None) else "/".join(map(milliseconds, found))
