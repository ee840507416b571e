"""`headway demo`: the live system on this machine, following a load.

Everything is one process: the replay runs in its event loop; once a second it reads the status document of
the control API in a thread beside it. What is shown comes from that document and from the replay's own
totals, nothing else.
"""

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from headway.loadgen import LoadPlan, LoadTally, ReplayCallbacks, ReplayProgress, replay
from headway.planning import Slo
from headway.workload import open_trace
from headway_cli.cluster import stop_signals, wait_for
from headway_cli.control import ControlClient
from headway_cli.decisions import DecisionLog
from headway_cli.demo_fleet import run_fleet_demo
from headway_cli.demo_plan import DemoPlan, make_demo_plan, write_load
from headway_cli.demo_record import DemoResult, History, Moment, live_report, read_pools
from headway_cli.demo_view import DemoView, print_plan, print_summary
from headway_cli.deployment import Deployed
from headway_cli.errors import CliError
from headway_cli.flags import option, switch
from headway_cli.options import DecodeSpeed, PrefillSpeed, speed_overrides
from headway_cli.output import check_outputs, write_text
from headway_cli.page.result import render
from headway_cli.status import read_status
from headway_cli.terminal import say
from headway_cli.up import running

DURATION_S = 150.0
LOOK_EVERY_S = 1.0
RATE_OVER_S = 5.0
PLANS_WITHIN_S = 240.0
PLANNING = ("running", "holding")
SETTLED_WITHIN_S = 25.0
"""After the load: how long to wait for the fleet to be back at its minimum."""


def demo(
    *,
    fleet: Annotated[bool, switch("--fleet", "Six models on one budget of GPUs, by one gateway.")] = False,
    output: Annotated[str, option("FILE", "Where the page goes; --fleet makes none.")] = "out/demo.html",
    duration: Annotated[float, option("S", "Seconds of load, live.", min=30.0, max=86400.0)] = DURATION_S,
    prefill_speed: PrefillSpeed = None,
    decode_speed: DecodeSpeed = None,
    keep: Annotated[bool, switch("--keep", "Leave it up afterwards, until Ctrl-C.")] = False,
) -> None:
    """Run everything on a local Ray with simulated engines, and watch replica counts follow a load."""
    engines = speed_overrides(prefill_speed, decode_speed)
    if fleet:
        if prefill_speed is not None or decode_speed is not None:
            raise CliError("--fleet: its engines have the speed of their profile")
        run_fleet_demo(duration, keep=keep)
        return
    # Only the default's own folder is made: a path that the user named must exist.
    if Path(output).parent == Path("out"):
        Path("out").mkdir(exist_ok=True)
    check_outputs({"--output": output})
    run_demo(make_demo_plan(duration, engines), output=Path(output), keep=keep)


def run_demo(plan: DemoPlan, *, output: Path, keep: bool) -> None:
    """The whole demo. CliError when something does not come up or the load does not get through."""
    print_plan(plan)
    began = time.monotonic()
    with running(plan.config) as deployed:
        wait_until_planning(ControlClient(url=deployed.url))
        print(f"Up after {time.monotonic() - began:.0f} s: {deployed.openai_url}", flush=True)
        print(
            f"To look at it, elsewhere: headway page --url {deployed.url} (or decisions --why)",
            flush=True,
        )
        result = _play(plan, deployed)
        print_summary(result)
        write_text(output, render(live_report(result)))
        print(f"\nThe report: {os.path.relpath(output)}")
        if keep:
            with stop_signals() as stopped:
                print(f"\nStill up: {deployed.openai_url}")
                print(f"headway status --url {deployed.url} --watch    shows it; Ctrl-C ends it.", flush=True)
                wait_for(stopped)
    if result.tally.requests and not result.tally.completed:
        raise CliError("no request completed")


def wait_until_planning(server: ControlClient, within_s: float = PLANS_WITHIN_S) -> None:
    """Until the planner has compiled and rehearsed what it does: a load that came before would go unplanned.

    CliError with the planner's own reason when it does not begin in time.
    """
    say("waiting until the planner is ready")
    deadline = time.monotonic() + within_s
    while (planner := read_status(server).planner).state not in PLANNING:
        if time.monotonic() > deadline:
            raise CliError(f"the planner does not begin: {planner.reason}")
        time.sleep(LOOK_EVERY_S)


def _play(plan: DemoPlan, deployed: Deployed) -> DemoResult:
    import uvloop

    server = ControlClient(url=deployed.url)
    history = History()
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        trace = Path(folder, "demo.csv")
        write_load(plan, trace)
        began_at = time.time()
        tally = runner.run(_replay(plan, trace, server, Watch(server, history, DemoView())))
    return DemoResult(
        plan=plan, tally=tally, history=history, decisions=DecisionLog(server).every(), began_at=began_at
    )


async def _replay(plan: DemoPlan, trace: Path, server: ControlClient, watch: "Watch") -> LoadTally:
    slo = Slo(ttft_s=plan.config.slo.ttft_s, itl_s=plan.config.slo.itl_s)
    load = LoadPlan(url=server.url, model=plan.config.model, slo=slo, timeout_s=120.0)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    with open_trace(str(trace)) as opened:
        tally = await replay(
            opened, load, ReplayCallbacks(on_progress=watch.look, progress_every_s=LOOK_EVERY_S), stop
        )
    if stop.is_set():
        raise KeyboardInterrupt
    await watch.until_settled(plan, tally)
    return tally


class Watch:
    """Looks at the deployment, and remembers and shows what it sees."""

    def __init__(self, server: ControlClient, history: History, view: DemoView) -> None:
        self._server, self._history, self._view = server, history, view
        self._sent: list[tuple[float, int]] = []

    async def look(self, progress: ReplayProgress) -> None:
        """One look. A status that does not come is a gap, not an end."""
        try:
            status = await asyncio.to_thread(read_status, self._server)
        except CliError as error:
            self._view.trouble(str(error))
            return
        moment = Moment(
            time_s=progress.elapsed_s,
            pools=read_pools(status.pools),
            rate_rps=self._rate(progress),
            in_flight=progress.in_flight,
            attainment=progress.tally.attainment,
            failed=progress.tally.failed + progress.tally.shed,
            decision=status.last_decision,
        )
        self._history.add(moment)
        self._view.show(self._history)

    def _rate(self, progress: ReplayProgress) -> float:
        """Requests per second over the last seconds."""
        self._sent.append((progress.elapsed_s, progress.sent))
        while len(self._sent) > 2 and progress.elapsed_s - self._sent[0][0] > RATE_OVER_S:
            self._sent.pop(0)
        (since_s, before), (now_s, sent) = self._sent[0], self._sent[-1]
        return (sent - before) / (now_s - since_s) if now_s > since_s else 0.0

    async def until_settled(self, plan: DemoPlan, tally: LoadTally) -> None:
        """Go on looking until every pool is back at its minimum, for a while."""
        last = self._history.moments[-1].time_s if self._history.moments else 0.0
        clock = _clock_from(last)
        minimum = {role: pool.min_replicas for role, pool in plan.config.pools.items()}
        while clock() < last + SETTLED_WITHIN_S and not self._settled(minimum):
            await asyncio.sleep(LOOK_EVERY_S)
            await self.look(ReplayProgress(elapsed_s=clock(), sent=tally.requests, in_flight=0, tally=tally))

    def _settled(self, minimum: dict[Any, int]) -> bool:
        pools = self._history.moments[-1].pools if self._history.moments else {}
        return all(
            pools.get(role, {}).get("ready") == count and not pools[role]["draining"]
            for role, count in minimum.items()
        )


def _clock_from(start_s: float) -> Callable[[], float]:
    began = time.monotonic() - start_s
    return lambda: time.monotonic() - began
