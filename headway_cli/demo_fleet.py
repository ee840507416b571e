"""`headway demo --fleet`: six models live on this machine, by one gateway and on one budget of GPUs.

Each has a load of its own: one rises and falls, one steps up, one comes in bursts, two are steady, and one is
asked so late that it sleeps by then. The budget is less than all want at their crests. What is
shown comes from `GET /v1/fleet` and from the replays' own totals, nothing else.
"""

import asyncio
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from rich.text import Text

from headway.config import FleetConfig
from headway.loadgen import LoadPlan, LoadTally, replay
from headway.planning import Slo
from headway.planning.documents import FleetInShort
from headway.planning.status_text import simulated_text
from headway.words import percent, plural, shown
from headway_cli.cluster import APPLICATION, stop_signals, wait_for
from headway_cli.control import ControlClient
from headway_cli.demo_plan import SPEED
from headway_cli.deployment import Deployed
from headway_cli.errors import CliError
from headway_cli.live_fleet import fleet_form, fleet_settings
from headway_cli.status import read_fleet
from headway_cli.terminal import bold, console, say, table
from headway_cli.up import running

GPUS = 8
COMMON: Mapping[str, Any] = {
    "fleet": {"gpus": GPUS},
    "engine": {
        "profile": "llama-3.1-8b_h100_tp1",
        "time_scale": SPEED,
        "start_up_s": 2.0,
        "sleep": {"wake_up_s": 1},
    },
    "slo": {"ttft_ms": 8000.0, "itl_ms": 200.0, "attainment": 0.95},
    "pools": {"mixed": {"max_replicas": 6}},
    "planner": {
        "adjustment_interval_s": 5.0,
        "headway": {"lead_s": 8.0, "hold_s": 20.0, "half_life_s": 300.0},
    },
    "gateway": {"port": 0, "request_timeout_s": 120.0},
}
"""A day's load passes in minutes, and so the planner's own times are those of minutes, too."""

DEPLOYMENTS: Mapping[str, Mapping[str, Any]] = {
    "chat": {"model": "llama-3.1-8b", "share": {"priority": 2, "floor_gpus": 2}},
    "code": {"model": "codestral-8b", "share": {"priority": 1}},
    "agents": {"model": "hermes-3-8b"},
    "summaries": {"model": "qwen-2.5-7b", "slo": {"ttft_ms": 20_000.0}},
    "translate": {"model": "aya-8b"},
    "rare": {
        "model": "olmo-7b",
        "slo": {"ttft_ms": 30_000.0},
        "share": {"floor_gpus": 1},
        "pools": {"mixed": {"min_replicas": 0, "sleepers": 1}},
    },
}
LENGTHS = "input_tokens=600,output_tokens=60"
LOADS: Mapping[str, str] = {
    "chat": "diurnal:rate_rps=0.9,amplitude=0.9,period_s={s}",
    "code": "step:rate_rps=0.2,peak_rps=1.2,at_s={half}",
    "agents": "onoff:rate_rps=0.1,peak_rps=1.2,on_s=25,every_s=90",
    "summaries": "steady:rate_rps=0.2",
    "translate": "steady:rate_rps=0.12",
    "rare": "step:rate_rps=0.001,peak_rps=0.1,at_s={half}",
}
LOOK_EVERY_S, LINE_EVERY_S, PLANS_WITHIN_S = 1.0, 10.0, 240.0


@dataclass
class Seen:
    """What was seen of one deployment: GPUs held, second by second, and the most that it wanted."""

    held: list[int] = field(default_factory=list)
    wanted: int = 0


def run_fleet_demo(duration_s: float, *, keep: bool) -> None:
    """The whole demo. CliError when something does not come up or no request gets through."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "fleet.yaml")
        path.write_text(yaml.safe_dump({**COMMON, "deployments": dict(DEPLOYMENTS)}, sort_keys=False))
        fleet = fleet_settings(str(path), APPLICATION)
    out = console()
    out.print(bold(f"{plural(len(DEPLOYMENTS), 'model')} live on this machine, on {GPUS} GPUs"))
    out.print(Text(simulated_text(SPEED), style="bold yellow"))
    began = time.monotonic()
    with running(fleet.common, form=fleet_form(fleet)) as deployed:
        server = ControlClient(url=deployed.url)
        _wait_until_planning(server)
        print(f"Up after {time.monotonic() - began:.0f} s: {deployed.openai_url}", flush=True)
        print(f"The fleet on one page: {deployed.url}/", flush=True)
        tallies, seen = _play(fleet, deployed, duration_s)
        _summarise(tallies, seen)
        if keep:
            with stop_signals() as stopped:
                print(f"\nStill up: {deployed.url}/; Ctrl-C ends it.", flush=True)
                wait_for(stopped)
    if not any(tally.completed for tally in tallies.values()):
        raise CliError("no request completed")


def _wait_until_planning(server: ControlClient) -> None:
    """Until all planners have compiled and rehearsed what they do. CliError."""
    say("waiting until the planners are ready")
    deadline = time.monotonic() + PLANS_WITHIN_S
    while waiting := [
        each.deployment
        for each in read_fleet(server).deployments
        if each.planner not in ("running", "holding")
    ]:
        if time.monotonic() > deadline:
            raise CliError(f"the planner of {', '.join(waiting)} does not begin")
        time.sleep(LOOK_EVERY_S)


def _play(
    fleet: FleetConfig, deployed: Deployed, duration_s: float
) -> tuple[Mapping[str, LoadTally], Mapping[str, Seen]]:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_replayed(fleet, deployed.url, duration_s))


async def _replayed(
    fleet: FleetConfig, url: str, duration_s: float
) -> tuple[Mapping[str, LoadTally], Mapping[str, Seen]]:
    stop, server = asyncio.Event(), ControlClient(url=url)
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    seen = {name: Seen() for name in fleet.deployments}
    looking = asyncio.create_task(_look(server, seen))
    try:
        loads = (_one(fleet, name, url, duration_s, stop) for name in fleet.deployments)
        tallies = await asyncio.gather(*loads)
    finally:
        looking.cancel()
    if stop.is_set():
        raise KeyboardInterrupt
    return dict(zip(fleet.deployments, tallies, strict=True)), seen


async def _one(fleet: FleetConfig, name: str, url: str, duration_s: float, stop: asyncio.Event) -> LoadTally:
    """Replay the load of one deployment."""
    from headway.workload import open_trace

    config = fleet.deployments[name]
    spec = f"{LOADS[name].format(s=duration_s, half=duration_s / 2)},duration_s={duration_s},{LENGTHS},seed=2"
    slo = Slo(ttft_s=config.slo.ttft_s, itl_s=config.slo.itl_s)
    with open_trace(spec) as trace:
        return await replay(trace, LoadPlan(url=url, model=config.model, slo=slo, timeout_s=120.0), stop=stop)


async def _look(server: ControlClient, seen: Mapping[str, Seen]) -> None:
    """Remember each second what each holds, and print a line now and then; an answer missed is a gap."""
    loop, began_s, due_s = asyncio.get_running_loop(), asyncio.get_running_loop().time(), 0.0
    while True:
        try:
            fleet = await asyncio.to_thread(read_fleet, server)
        except CliError:
            await asyncio.sleep(LOOK_EVERY_S)
            continue
        for each in fleet.deployments:
            if each.budget is not None:
                seen[each.deployment].held.append(each.budget.holds)
                seen[each.deployment].wanted = max(seen[each.deployment].wanted, each.budget.wanted or 0)
        if (at_s := loop.time() - began_s) >= due_s:
            due_s = at_s + LINE_EVERY_S
            print(_line(at_s, fleet), flush=True)
        await asyncio.sleep(LOOK_EVERY_S)


def _line(at_s: float, fleet: FleetInShort) -> str:
    """Seconds, GPUs held by each, and what is lacking."""
    holds = [each.budget.holds if each.budget else 0 for each in fleet.deployments]
    parts = [f"{each.deployment} {held}" for each, held in zip(fleet.deployments, holds, strict=True)]
    lacks = [each.deployment for each in fleet.deployments if each.budget and each.budget.words]
    short = f"; {', '.join(lacks)} would hold more" if lacks else ""
    return f"{at_s:5.0f} s  {sum(holds)} of {shown(fleet.gpus)} GPUs: {', '.join(parts)}{short}"


def _summarise(tallies: Mapping[str, LoadTally], seen: Mapping[str, Seen]) -> None:
    rows = [_row(name, tally, seen[name]) for name, tally in tallies.items()]
    head = ("deployment", "requests", "within SLO", "TTFT p95 s", "GPUs, mean", "most", "wanted most")
    console().print(table(head, rows))
    held = [sum(counts) for counts in zip(*(each.held for each in seen.values()), strict=False)]
    peaks = sum(max(each.held, default=0) for each in seen.values())
    if held:
        mean = sum(held) / len(held)
        print(f"All together held {mean:.1f} GPUs in the mean and {max(held)} at most, of {GPUS};")
        print(
            f"a fixed fleet for each, of the most that it held, would be {peaks}: {mean / peaks:.2f} of that."
        )


def _row(name: str, tally: LoadTally, seen: Seen) -> Sequence[str]:
    ttft_s = tally.latencies["ttft_s"].quantile(0.95) if tally.completed else None
    mean = sum(seen.held) / len(seen.held) if seen.held else None
    return (
        name,
        f"{tally.requests}",
        percent(tally.attainment),
        shown(ttft_s),
        shown(mean),
        shown(max(seen.held, default=None)),
        shown(seen.wanted),
    )
