"""`headway status` and `page`: health, pools, attainment, the last decision and why, all components."""

import webbrowser
from collections.abc import Iterator, Mapping
from json import dumps
from time import sleep
from typing import Annotated
from urllib.parse import quote

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from headway.engine.refinement import difference
from headway.planning import Role
from headway.planning.decision_text import answer_text, measured_text, reached_text, targets_text
from headway.planning.documents import (
    ChangeFigures,
    PoolStatus,
    RefinedFigures,
    RestartFigures,
    StatusDocument,
)
from headway.planning.records import ClassFigures, LatencyFigures, MeasuredFigures, SloFigures
from headway.words import clock, milliseconds, moment, percent, plural, shown
from headway_cli.advice_view import acts, fleet_text, verdict
from headway_cli.control import KEY_VARIABLE, ControlClient, KeyVariable, UrlOption, client, parse
from headway_cli.errors import CliError
from headway_cli.flags import switch
from headway_cli.terminal import bold, console, table

PATH = "/v1/control/status"
PERIOD_S = 1.0
UNWELL = 1
"""Exit code of `--check` where somebody should look."""

SIMULATED = "SIMULATED engine: no GPU is used and no model answers"
COUNTS = ("desired", "starting", "ready", "draining", "running", "waiting")


def status(
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
    if json:
        print(dumps(server.get(PATH), indent=1))
        return 0
    if check:
        return _checked(read_status(server))
    view = status_view(read_status(server), server.url)
    if watch:
        _watch(server)
    else:
        console().print(view)
    return 0


def _checked(document: StatusDocument) -> int:
    if document.verdict is None:
        raise CliError("the server reports no health: it runs an older version")
    print(document.verdict.text)
    return 0 if document.verdict.well else UNWELL


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


def _watch(server: ControlClient) -> None:
    with Live(console=console(), auto_refresh=False) as live:
        while True:
            try:
                view = status_view(read_status(server), server.url)
            except CliError as error:  # a server that restarts is watched on
                view = Text(str(error), style="bold red")
            live.update(view, refresh=True)
            sleep(PERIOD_S)


def status_view(document: StatusDocument, url: str) -> RenderableType:
    """Everything about a deployment on one screen."""
    lines = [bold(f"{document.model} at {url}"), *verdict_lines(document), *engine_lines(document)]
    facts = {**planner_facts(document), **load_facts(document)}
    margin = max(map(len, facts)) + 2
    lines += [Text(f"{name:<{margin}}{text}") for name, text in facts.items()]
    parts = (*component_lines(document), *host_lines(document))
    return Group(*lines, pool_table(document.pools), *latency_tables(document), *parts)


def verdict_lines(document: StatusDocument) -> Iterator[Text]:
    """The health, red where somebody should look."""
    if document.verdict is not None:
        yield Text(document.verdict.text, style="bold green" if document.verdict.well else "bold red")


def engine_lines(document: StatusDocument) -> Iterator[Text]:
    """Warnings that must not be overlooked: a simulated engine, a planner that only watches."""
    if document.engine.simulated:
        scale = document.engine.time_scale
        speed = "" if scale in (None, 1.0) else f", at {scale:g} × the speed of its profile"
        yield Text(SIMULATED + speed, style="bold yellow")
    if document.planner.dry_run:
        yield Text("dry run: decisions are logged, nothing is scaled", style="bold yellow")


def planner_facts(document: StatusDocument) -> dict[str, str]:
    """The planner and its last decision, as named sentences."""
    planner, last = document.planner, document.last_decision
    why = f" ({planner.reason})" if planner.reason else ""
    ticks = {"late ticks": planner.late_ticks, "failed ticks": planner.failed_ticks}
    odd = [f"{count} {name}" for name, count in ticks.items() if count]
    facts = {
        "Planner": f"{planner.state}{why}: {planner.policy} policy, "
        + (f"predictor {planner.predictor}, " if planner.predictor else "")
        + f"every {shown(planner.interval_s)} s, "
        + ", ".join([f"{shown(planner.ticks)} ticks", *odd]),
        "Decision": "none yet",
    }
    if (advice := document.advice) is not None:
        acted = advice.acted if acts(advice) else None
        whole = (advice if acted is None else acted).day
        if whole is not None and (acted is not None or not advice.acting):
            beside = "" if acted is None else f", compared with a constant {fleet_text(acted)}"
            facts["Its plan" if acted is None else "Headway"] = (
                f"{verdict(whole, advice)}{beside}; `headway advise` has more"
            )
    if last is not None:
        made = f"#{last.id} at {clock(last.created_at)}: {targets_text(last.targets)}"
        facts["Decision"] = f"{made}; {answer_text(document.connector) or reached_text(last)}"
        facts["Why"] = last.summary or "no reason given"
        if edits := edits_text(document):
            facts["Others"] = edits
        if last.missing:
            facts["Missing"] = "; ".join(
                f"{plural(each.replicas, f'{role} replica')} since {clock(each.since_s)}, "
                f"{percent(each.lost_share)} of the requests lost"
                for role, each in last.missing.items()
            )
    return facts


def edits_text(document: StatusDocument) -> str:
    """Counts set by someone else, and other controllers; empty if there are none."""
    edits = [
        f"{edit.role} set to {edit.found} (ours: {edit.ours}) by {edit.by or 'someone else'} at "
        f"{clock(edit.changed_at or edit.seen_at)}, "
        + (f"kept until {clock(edit.left_until)}" if edit.left_until else "will be reset")
        for edit in document.connector.foreign_edits
    ]
    return "; ".join([*edits, *document.connector.rivals])


def load_facts(document: StatusDocument) -> dict[str, str]:
    """SLO attainment, the last interval's load and what traffic taught of the profile, as named sentences."""
    slo, attained = document.slo, document.attainment
    facts = {
        "SLO": f"TTFT {shown(slo.ttft_ms)} ms, ITL {shown(slo.itl_ms)} ms: "
        f"{percent(attained.last_interval)} in the last interval, "
        f"{percent(attained.total)} in total, target {percent(slo.attainment)}"
        + (", by TTFT alone" if attained.ttft_only else "")
    }
    if measured := document.measured:
        span_s = (measured.end_s or 0.0) - (measured.start_s or 0.0)
        facts["Measured"] = measured_text(measured, span_s)
    if forecast := forecast_text(document):
        facts["Forecast"] = forecast
    if document.changes:
        facts["Settings"] = changes_text(document)
    if refined := document.refined:
        facts["Engines"] = engines_text(refined)
    if document.differing:
        facts["Replicas"] = replicas_text(document)
    return facts


def replicas_text(document: StatusDocument) -> str:
    """The replicas that are slower or faster than their peers, and what the plan holds for them."""
    slow = document.last_decision.slow if document.last_decision else {}
    words = []
    for role, differing in document.differing.items():
        ready = document.pools[role].ready if role in document.pools else None
        of = "" if ready is None else f" of {ready}"
        words += [
            f"1{of} {role} replicas ({one.replica}) has taken {one.slowness:g} times as long as the others "
            f"since {clock(one.since_s)}"
            for one in differing
        ]
        if (held := slow.get(role)) and held.slowness:
            share = sum(held.worth) / len(held.slowness)
            words.append(
                f"slow ones do {percent(share)} of the work of others; keeping {held.lacking} more to make up"
            )
    return "; ".join(words)


def forecast_text(document: StatusDocument) -> str:
    """The requests of the next interval, with their range and the recent error; empty without a forecast."""
    last = document.last_decision
    forecast = None if last is None else last.forecast
    if last is None or forecast is None or forecast.requests is None:
        return ""
    low, high = forecast.requests_low, forecast.requests_high
    band = "" if low is None or high is None else f", 90 % interval {shown(low)} to {shown(high)}"
    error = last.forecast_error
    missed = "" if error is None else f"; recent error {percent(round(error, 3))}"
    return f"{shown(forecast.requests)} requests in the next interval{band}{missed}"


def changes_text(document: StatusDocument) -> str:
    """The settings that were changed while it ran, by whom and when."""
    return "; ".join(
        f"{key} {dumps(value)}{author_text(document.changed.get(key))}"
        for key, value in document.changes.items()
    )


def author_text(change: ChangeFigures | None) -> str:
    """` by NAME at TIME`, as far as that is known."""
    if change is None:
        return ""
    by = f" by {change.by}" if change.by else ""
    return by if change.at is None else f"{by} {moment(change.at)}"


def engines_text(refined: RefinedFigures) -> str:
    """How each phase differs from the profile, and since when."""
    words = []
    for phase, factor in refined.factors.items():
        since_s = refined.since.get(phase)
        since = "" if since_s is None else f" since {clock(since_s)}"
        differs = difference(phase, factor)
        words.append(f"{differs}{since}; the plan accounts for it" if differs else f"{phase} as profiled")
    return "; ".join(words) or "as profiled"


def pool_table(pools: Mapping[Role, PoolStatus]) -> RenderableType:
    """Replicas and load per pool."""
    rows = (
        (
            role,
            *(shown(getattr(pool, name)) for name in COUNTS),
            percent(pool.kv_usage),
            f"{shown(pool.min_replicas)} to {shown(pool.max_replicas)}",
        )
        for role, pool in pools.items()
    )
    return table(("pool", *COUNTS, "KV usage", "range"), rows, dense=False)


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


def component_lines(document: StatusDocument) -> Iterator[Text]:
    """One line per unhealthy component; one line if all are healthy."""
    ill = {name: each for name, each in document.components.items() if not each.ok}
    if document.components and not ill:
        yield Text(f"All components healthy: {', '.join(document.components)}")
    for name, each in ill.items():
        yield Text(f"{name}: {each.detail or 'unhealthy'}", style="bold red")
    if document.restarts:
        yield Text(f"Restarted: {', '.join(restart_text(*each) for each in document.restarts.items())}")


def restart_text(part: str, found: RestartFigures) -> str:
    """`Planner on 2026-11-23 at 08:31 (2 times so far)`."""
    again = f" ({found.count} times so far)" if found.count > 1 else ""
    return f"{part} {moment(found.at)}{again}"


def host_lines(document: StatusDocument) -> Iterator[Text]:
    """One line per host that is or was recently unhealthy, and one while Ray's GCS is away."""
    if (away_s := document.gcs_away_since_s) is not None:
        text = f"Ray's GCS has not answered since {clock(away_s)}: nothing can be stored or started"
        yield Text(text, style="bold red")
    for host in document.hosts:
        ran = ", ".join(host.ran) or "nothing of Headway's"
        back = "" if host.back_s is None else f" until {clock(host.back_s)}, back now"
        state = "away" if back else host.state
        text = f"Host {host.address}: {state} since {clock(host.since_s)}{back}; it ran {ran}"
        yield Text(text, style="yellow" if back else "bold red")
