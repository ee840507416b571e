"""`headway status`: the pools, SLO attainment, the last decision and why, and how the components are."""

from collections.abc import Iterator, Mapping
from json import dumps
from time import sleep
from typing import Annotated

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headway.engine.refinement import difference
from headway.planning import Role
from headway.planning.records import (
    DecisionRecord,
    LastDecision,
    MeasuredFigures,
    PoolStatus,
    RefinedFigures,
    StatusDocument,
)
from headway_cli.control import KEY_VARIABLE, ControlClient, KeyVariable, UrlOption, client, parse
from headway_cli.errors import CliError
from headway_cli.flags import switch
from headway_cli.terminal import bold, console, table
from headway_cli.words import clock, milliseconds, percent, plural, shown

PATH = "/v1/control/status"
PERIOD_S = 1.0
SIMULATED = "SIMULATED engine: no GPU is used and no model answers"
COUNTS = ("desired", "starting", "ready", "draining", "running", "waiting")


def status(
    *,
    url: UrlOption = None,
    api_key_env: KeyVariable = KEY_VARIABLE,
    json: Annotated[bool, switch("--json", "Print the document as the server sends it.")] = False,
    watch: Annotated[bool, switch("--watch", "Show it once a second until Ctrl-C.")] = False,
) -> None:
    """Show a running deployment: pools, SLO attainment, the last decision and why."""
    server = client(url, api_key_env)
    if json:
        print(dumps(server.get(PATH), indent=1))
        return
    view = status_view(read_status(server), server.url)
    if watch:
        _watch(server)
    else:
        console().print(view)


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
    lines = [bold(f"{document.model} at {url}"), *engine_lines(document)]
    facts = {**planner_facts(document), **load_facts(document)}
    margin = max(map(len, facts)) + 2
    lines += [Text(f"{name:<{margin}}{text}") for name, text in facts.items()]
    return Group(*lines, pool_table(document.pools), *component_lines(document))


def engine_lines(document: StatusDocument) -> Iterator[Text]:
    """Warnings that must not be overlooked: a simulated engine, a planner that only watches."""
    if document.engine.simulated:
        scale = document.engine.time_scale
        speed = "" if scale in (None, 1.0) else f", at {scale:g} × the speed of its profile"
        yield Text(SIMULATED + speed, style="bold yellow")
    if document.planner.dry_run:
        yield Text("dry run: decisions are logged, nothing is set", style="bold yellow")


def planner_facts(document: StatusDocument) -> dict[str, str]:
    """The planner and its last decision, as named sentences."""
    planner, last = document.planner, document.last_decision
    why = f" ({planner.reason})" if planner.reason else ""
    ticks = {"late ticks": planner.late_ticks, "failed ticks": planner.failed_ticks}
    odd = [f"{count} {name}" for name, count in ticks.items() if count]
    facts = {
        "Planner": f"{planner.state}{why}: {planner.policy} policy, "
        f"{planner.predictor or 'no'} predictor, every {shown(planner.interval_s)} s, "
        + ", ".join([f"{shown(planner.ticks)} ticks", *odd]),
        "Decision": "none yet",
    }
    if last is not None:
        made = f"#{last.id} at {clock(last.created_at)}: {targets_text(last.targets)}"
        facts["Decision"] = f"{made}; {last.status}, {reached_text(last)}"
        facts["Why"] = last.summary or "not said"
        if last.missing:
            facts["Missing"] = "; ".join(
                f"{plural(each.replicas, f'{role} replica')} since {clock(each.since_s)}, "
                f"{percent(each.lost_share)} of the requests lost"
                for role, each in last.missing.items()
            )
    return facts


def load_facts(document: StatusDocument) -> dict[str, str]:
    """SLO attainment, the last interval's load and what traffic taught of the profile, as named sentences."""
    slo, attained = document.slo, document.attainment
    facts = {
        "SLO": f"TTFT {shown(slo.ttft_ms)} ms, ITL {shown(slo.itl_ms)} ms: "
        f"{percent(attained.last_interval)} in the last interval, "
        f"{percent(attained.total)} in total, aim {percent(slo.attainment)}"
    }
    if measured := document.measured:
        span_s = (measured.end_s or 0.0) - (measured.start_s or 0.0)
        facts["Measured"] = measured_text(measured, span_s)
    if refined := document.refined:
        facts["Engines"] = engines_text(refined)
    return facts


def engines_text(refined: RefinedFigures) -> str:
    """By phase how the engines differ from their profile, and since when; what is near it is as profiled."""
    words = []
    for phase, factor in refined.factors.items():
        since_s = refined.since.get(phase)
        since = "" if since_s is None else f" since {clock(since_s)}"
        said = difference(phase, factor)
        words.append(f"{said}{since}, the plan is corrected" if said else f"{phase} as profiled")
    return "; ".join(words) or "as profiled"


def measured_text(measured: MeasuredFigures, span_s: float) -> str:
    """One interval as measured, in one sentence."""
    requests, ttft, itl, health = measured.requests, measured.ttft_s, measured.itl_s, measured.health
    rate = "" if requests is None or span_s <= 0 else f" ({requests / span_s:.3g}/s)"
    state = ": ".join(filter(None, (health.status, health.detail)))
    return (
        f"{shown(requests)} requests{rate}, ISL {shown(measured.isl_tokens)}, "
        f"OSL {shown(measured.osl_tokens)}; TTFT mean {milliseconds(ttft.mean)} ms, "
        f"p95 {milliseconds(ttft.p95)} ms; ITL mean {milliseconds(itl.mean)} ms, "
        f"p95 {milliseconds(itl.p95)} ms; {_waited_and_cached(measured)}data {state or 'unknown'}"
    )


def _waited_and_cached(measured: MeasuredFigures) -> str:
    queue_s, cached = measured.queue_s, measured.cached_tokens
    waited = "" if queue_s is None else f"queued {milliseconds(queue_s)} ms in the mean; "
    return waited if cached is None else f"{waited}{shown(cached)} tokens of a prompt cached; "


def pool_table(pools: Mapping[Role, PoolStatus]) -> Table:
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


def component_lines(document: StatusDocument) -> Iterator[Text]:
    """One line per component that is not well; one line if all are."""
    ill = {name: each for name, each in document.components.items() if not each.ok}
    if document.components and not ill:
        yield Text(f"All parts are well: {', '.join(document.components)}")
    for name, each in ill.items():
        yield Text(f"{name}: {each.detail or 'not well'}", style="bold red")


def targets_text(targets: Mapping[Role, int], previous: Mapping[Role, int] | None = None) -> str:
    """`prefill 2, decode 3`, or `prefill 1 → 2, decode 3` beside earlier targets."""
    before = previous or {}
    return ", ".join(
        f"{role} {count}" if before.get(role, count) == count else f"{role} {before[role]} → {count}"
        for role, count in targets.items()
    )


def reached_text(decision: LastDecision | DecisionRecord) -> str:
    """When the replicas were all running, or that they are not yet."""
    if decision.reached_at is None:
        return "not reached yet"
    return f"reached after {max(decision.reached_at - decision.created_at, 0.0):.1f} s"
