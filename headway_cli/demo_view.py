"""The demo on standard output: lines while it runs, and at its end what came of it."""

from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from headway.planning import Role, decision_interval_s
from headway.planning.decision_text import targets_text
from headway.planning.documents import LastDecision
from headway.planning.records import DecisionRecord
from headway.planning.status_text import simulated_text
from headway.words import percent
from headway_cli.decisions import print_story
from headway_cli.demo_plan import SPEED, DemoPlan
from headway_cli.demo_record import DemoResult, History, Moment, live_report
from headway_cli.result_view import print_result
from headway_cli.terminal import bold, console, table

LINE_EVERY_S = 5.0
ROW_EVERY_S = 10.0


def print_plan(plan: DemoPlan) -> None:
    """Print what will run, and from which calculation."""
    crest, trough = plan.needs(plan.crest_rps), plan.needs(plan.trough_rps)
    slo = plan.config.slo
    out = console()
    out.print(bold("Headway live on this machine"))
    out.print(Text(simulated_text(SPEED), style="bold yellow"))
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
        f"target {percent(slo.attainment)}; a decision every {decision_interval_s(plan.config.planner):g} s"
    )


class DemoView:
    """One line every few seconds."""

    def __init__(self) -> None:
        self._due_s = 0.0

    def show(self, history: History) -> None:
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


def decision_text(decision: LastDecision | None) -> str:
    """`#6 prefill 2, decode 3`."""
    return "no decision yet" if decision is None else f"#{decision.id} {targets_text(decision.targets)}"


def print_summary(result: DemoResult) -> None:
    """Everything, after the run."""
    out = console()
    out.print()
    out.print(bold("Replicas over time"))
    out.print(replica_table(result.history))
    print_result(live_report(result), out)
    chosen = example(result.decisions)
    if chosen is not None:
        out.print()
        print_story(chosen)
    _print_starts(result, out)


def replica_table(history: History) -> RenderableType:
    """Load, replicas (ready of desired) and attainment, a row every few seconds."""
    roles = (f"{role} ready/desired" for role in history.roles)
    rows = (
        (
            f"{moment.time_s:.0f} s",
            f"{moment.rate_rps:.1f}",
            *(f"{pool['ready']}/{pool['desired']}" for pool in moment.pools.values()),
            str(moment.in_flight),
            percent(moment.attainment),
        )
        for moment in history.every(ROW_EVERY_S)
    )
    head = ("time", "requests/s", *roles, "in flight", "within SLO so far")
    return table(head, rows, names=0, dense=False)


def example(decisions: Sequence[DecisionRecord]) -> DecisionRecord | None:
    """The decision that started the most replicas and was reached, the first such."""
    started = [record for record in decisions if record.replicas and record.reached_at is not None]
    return max(started, key=lambda record: len(record.replicas), default=None)


def starts(decisions: Sequence[DecisionRecord]) -> Iterator[tuple[int, str, float]]:
    """Per replica: the decision that started it, its role, seconds from decision to RUNNING."""
    for record in decisions:
        for replica in record.replicas:
            if replica.running_at is not None:
                yield record.id, replica.role, replica.running_at - record.created_at


def _print_starts(result: DemoResult, out: Console) -> None:
    if not (found := list(starts(result.decisions))):
        return
    own_s = result.plan.config.engine.start_up_s
    seconds = sorted(taken_s for _, _, taken_s in found)
    out.print()
    out.print(bold("From decision to RUNNING"))
    for decision, role, taken_s in found:
        out.print(f"  #{decision} {role}: {taken_s:.1f} s, of which Ray and Serve {taken_s - own_s:.1f} s")
    middle = seconds[len(seconds) // 2]
    out.print(
        f"  {len(seconds)} replicas: {seconds[0]:.1f} to {seconds[-1]:.1f} s, median {middle:.1f} s; "
        f"the simulated engine's own start is {own_s:g} s of that"
    )
