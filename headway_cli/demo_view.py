"""What the demo shows while it runs: a panel on a terminal, a line every few seconds elsewhere."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headway.planning import Role
from headway_cli.demo_history import History, Moment, sparkline
from headway_cli.demo_plan import SPEED, DemoPlan
from headway_cli.status_view import SIMULATED, clock, targets_text
from headway_cli.tables import console
from headway_cli.words import percent

Status = Mapping[str, Any]

LINE_EVERY_S = 5.0
SPARK_WIDTH = 60


class DemoView(Protocol):
    """Where the demo shows itself."""

    def show(self, history: History, status: Status) -> None:
        """The newest moment has been added."""

    def trouble(self, text: str) -> None:
        """The status could not be read just now."""


@contextmanager
def demo_view(plan: DemoPlan) -> Iterator[DemoView]:
    """A panel if standard output is a terminal, lines if not."""
    if not sys.stdout.isatty():
        yield Lines()
        return
    with Live(console=console(), auto_refresh=False) as live:
        yield Panel(live, plan)


def print_plan(plan: DemoPlan) -> None:
    """What will run, and from which calculation."""
    crest, trough = plan.needs(plan.crest_rps), plan.needs(plan.trough_rps)
    slo = plan.config.slo
    out = console()
    out.print(Text("Headway live on this machine", style="bold"))
    out.print(Text(f"{SIMULATED}, at {SPEED:g} × the speed of its profile", style="bold yellow"))
    out.print(
        f"Load        {plan.trough_rps:.2g} to {plan.crest_rps:.2g} requests/s and back in "
        f"{plan.duration_s:g} s, {plan.input_tokens:,} tokens in, {plan.output_tokens} out"
    )
    needs = ", ".join(
        f"{role} {trough[role]:.1f} to {crest[role]:.1f}" for role in (Role.PREFILL, Role.DECODE)
    )
    out.print(f"Needs       {needs} replicas, by the profile, on average")
    out.print(
        f"SLO         TTFT {slo.ttft_ms:g} ms, ITL {slo.itl_ms:g} ms "
        f"({slo.ttft_ms * SPEED:g} and {slo.itl_ms * SPEED:g} ms at the profile's speed), "
        f"aim {percent(slo.attainment)}; a decision every {plan.config.planner.interval_s:g} s"
    )


class Lines:
    """One line every few seconds."""

    def __init__(self) -> None:
        self._due_s = 0.0

    def show(self, history: History, status: Status) -> None:
        """Print the newest moment if it is time."""
        moment = history.moments[-1]
        if moment.time_s < self._due_s:
            return
        self._due_s = moment.time_s + LINE_EVERY_S
        print(line(moment), flush=True)

    def trouble(self, text: str) -> None:
        """Print it."""
        print(f"  {text}", flush=True)


def line(moment: Moment) -> str:
    """`  35 s   3.2 requests/s   prefill 2/2   decode 2/3   98.2 % within SLO   #6 …`."""
    pools = "   ".join(f"{role} {pool['ready']}/{pool['desired']}" for role, pool in moment.pools.items())
    failed = f"   {moment.failed} failed" if moment.failed else ""
    return (
        f"{moment.time_s:5.0f} s   {moment.rate_rps:4.1f} requests/s   {pools} ready   "
        f"{percent(moment.attainment):>7} within SLO{failed}   {decision_text(moment.decision)}"
    )


def decision_text(decision: Mapping[str, Any] | None) -> str:
    """`#6 prefill 2, decode 3`."""
    return "no decision yet" if decision is None else f"#{decision['id']} {targets_text(decision['targets'])}"


class Panel:
    """Figures and bars over time, redrawn with every moment."""

    def __init__(self, live: Live, plan: DemoPlan) -> None:
        self._live, self._plan = live, plan

    def show(self, history: History, status: Status) -> None:
        """Redraw."""
        moment = history.moments[-1]
        last = moment.decision or {}
        done = f"{moment.time_s:.0f} s of {self._plan.duration_s:g} s, SIMULATED engine"
        self._live.update(
            Group(
                Text(done, style="bold"),
                self._table(history),
                Text(f"{percent(moment.attainment)} within SLO, {moment.failed} failed"),
                Text(decision_text(moment.decision) + (f" at {clock(last['created_at'])}" if last else "")),
                Text(str(last.get("summary") or ""), style="dim"),
            ),
            refresh=True,
        )

    def _table(self, history: History) -> Table:
        table = Table.grid(padding=(0, 2))
        moments = history.sampled(SPARK_WIDTH)
        rates = [moment.rate_rps for moment in moments]
        table.add_row("load", f"{rates[-1]:.1f} requests/s", sparkline(rates, self._plan.crest_rps))
        for role, pool in history.moments[-1].pools.items():
            top = max(history.highest(role, "ready"), history.highest(role, "desired"), 1)
            for name, count in (("desired", "desired"), ("ready", "ready")):
                values = [float(moment.pools[role][count]) for moment in moments]
                table.add_row(f"{role} {name}", str(pool[count]), sparkline(values, float(top)))
        return table

    def trouble(self, text: str) -> None:
        """Show it above the panel."""
        self._live.console.print(text)
