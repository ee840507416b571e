"""`headway status`: the pools, SLO attainment, the last decision and why, and how the parts are."""

import time
from collections.abc import Iterator, Mapping
from json import dumps
from time import sleep
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headway_cli.control import KEY_VARIABLE, ControlClient, KeyVariable, UrlOption, client
from headway_cli.errors import CliError
from headway_cli.tables import console
from headway_cli.words import milliseconds, percent

PATH = "/v1/control/status"
PERIOD_S = 1.0

Document = Mapping[str, Any]
SIMULATED = "SIMULATED engine: no GPU is used and no model answers"
COLUMNS = ("desired", "starting", "ready", "draining", "running", "waiting", "kv_usage")


def status(
    *,
    url: UrlOption = None,
    api_key_env: KeyVariable = KEY_VARIABLE,
    json: Annotated[bool, typer.Option("--json", help="Print the document as the server sends it.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it once a second until Ctrl-C.")] = False,
) -> None:
    """Show a running deployment: pools, SLO attainment, the last decision and why."""
    server = client(url, api_key_env)
    document = server.get(PATH)
    if json:
        print(dumps(document, indent=1))
    elif watch:
        _watch(server)
    else:
        console().print(status_view(document, server.url))


def _watch(server: ControlClient) -> None:
    with Live(console=console(), auto_refresh=False) as live:
        while True:
            live.update(_read(server), refresh=True)
            sleep(PERIOD_S)


def _read(server: ControlClient) -> RenderableType:
    """The view, or the fault: a server that restarts is watched on."""
    try:
        return status_view(server.get(PATH), server.url)
    except CliError as error:
        return Text(str(error), style="bold red")


def status_view(document: Document, url: str) -> RenderableType:
    """Everything about a deployment on one screen."""
    lines = [Text(f"{document['model']} at {url}", style="bold"), *engine_lines(document)]
    facts = {**planner_facts(document), **load_facts(document)}
    margin = max(map(len, facts)) + 2
    lines += [Text(f"{name:<{margin}}{text}") for name, text in facts.items()]
    return Group(*lines, pool_table(document["pools"]), *components(document))


def engine_lines(document: Document) -> Iterator[Text]:
    """What must not be overlooked: a simulated engine, a planner that only watches."""
    engine = document.get("engine") or {}
    if engine.get("simulated"):
        scale = engine.get("time_scale")
        speed = "" if scale in (None, 1, 1.0) else f", at {scale:g} × the speed of its profile"
        yield Text(SIMULATED + speed, style="bold yellow")
    if (document.get("planner") or {}).get("dry_run"):
        yield Text("dry run: decisions are logged, nothing is set", style="bold yellow")


def planner_facts(document: Document) -> dict[str, str]:
    """The planner and its last decision, as named sentences."""
    planner, last = document.get("planner") or {}, document.get("last_decision")
    why = f" ({planner['reason']})" if planner.get("reason") else ""
    odd = [
        f"{planner[key]} {key.replace('_', ' ')}"
        for key in ("late_ticks", "failed_ticks")
        if planner.get(key)
    ]
    facts = {
        "Planner": f"{planner.get('state', 'unknown')}{why}: {planner.get('policy')} policy, "
        f"{planner.get('predictor') or 'no'} predictor, every {shown(planner.get('interval_s'))} s, "
        + ", ".join([f"{shown(planner.get('ticks'))} ticks", *odd]),
    }
    if last is None:
        return {**facts, "Decision": "none yet"}
    return {
        **facts,
        "Decision": f"#{last['id']} at {clock(last['created_at'])}: {targets_text(last['targets'])}; "
        f"{last['status']}, {reached_text(last)}",
        "Why": str(last.get("summary") or "not said"),
    }


def load_facts(document: Document) -> dict[str, str]:
    """SLO attainment, the last interval's load and what traffic taught of the profile, as named sentences."""
    slo, attained = document.get("slo") or {}, document.get("attainment") or {}
    facts = {
        "SLO": f"TTFT {shown(slo.get('ttft_ms'))} ms, ITL {shown(slo.get('itl_ms'))} ms: "
        f"{percent(attained.get('last_interval'))} in the last interval, "
        f"{percent(attained.get('total'))} in total, aim {percent(slo.get('attainment'))}"
    }
    if measured := document.get("measured"):
        facts["Measured"] = measured_text(measured)
    if refined := document.get("refined"):
        facts["Profile"] = f"refined by traffic in {refined['cells']} cells, version {refined['version']}"
    return facts


def measured_text(measured: Document) -> str:
    """One interval as measured, in one sentence."""
    span_s = measured["end_s"] - measured["start_s"]
    requests = measured.get("requests")
    rate = "" if requests is None or span_s <= 0 else f" ({requests / span_s:.3g}/s)"
    ttft, itl = measured.get("ttft_s") or {}, measured.get("itl_s") or {}
    health = measured.get("health") or {}
    state = ": ".join(filter(None, (health.get("status"), health.get("detail"))))
    return (
        f"{shown(requests)} requests{rate}, ISL {shown(measured.get('isl_tokens'))}, "
        f"OSL {shown(measured.get('osl_tokens'))}; TTFT mean {milliseconds(ttft.get('mean'))} ms, "
        f"p95 {milliseconds(ttft.get('p95'))} ms; ITL mean {milliseconds(itl.get('mean'))} ms, "
        f"p95 {milliseconds(itl.get('p95'))} ms; data {state or 'unknown'}"
    )


def pool_table(pools: Document) -> Table:
    """Replicas and load per pool."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("pool")
    for name in (*COLUMNS[:-1], "KV usage", "range"):
        table.add_column(name, justify="right")
    for role, pool in pools.items():
        cells = [shown(pool.get(name)) for name in COLUMNS[:-1]]
        bounds = f"{shown(pool.get('min_replicas'))} to {shown(pool.get('max_replicas'))}"
        table.add_row(role, *cells, percent(pool.get("kv_usage")), bounds)
    return table


def components(document: Document) -> Iterator[Text]:
    """One line per part that is not well; one line if all are."""
    parts = document.get("components") or {}
    ill = {name: part for name, part in parts.items() if not part["ok"]}
    if parts and not ill:
        yield Text(f"All parts are well: {', '.join(parts)}")
    for name, part in ill.items():
        yield Text(f"{name}: {part.get('detail') or 'not well'}", style="bold red")


def targets_text(targets: Mapping[str, int], previous: Mapping[str, int] | None = None) -> str:
    """`prefill 2, decode 3`, or `prefill 1 → 2, decode 3` beside earlier targets."""
    before = previous or {}
    return ", ".join(
        f"{role} {count}" if before.get(role, count) == count else f"{role} {before[role]} → {count}"
        for role, count in targets.items()
    )


def reached_text(decision: Document) -> str:
    """Whether and when the replicas were all running."""
    reached_at = decision.get("reached_at")
    if reached_at is None:
        return "not reached yet"
    return f"reached after {max(reached_at - decision['created_at'], 0.0):.1f} s"


def clock(unix_s: float) -> str:
    """Local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(unix_s))


def shown(value: float | None) -> str:
    """A number to three digits, or whole; `n/a` for none."""
    if value is None:
        return "n/a"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
