"""`headway demo --flood`: a live fleet of fixed size, and one of two tenants asks for far more than it can.

Engines run at SPEED of their profile, two mixed replicas with a batch of BATCH: some 10 requests of the load
below a second. Both tenants are API keys of a file made for the run, equal in weight:

    small    SMALL_RPS all along, less than half of what the fleet can do
    flood    FLOOD_RPS in the phase `during`, nothing before and after

Requests are counted by tenant and by the phase in which they should have left, from what clients saw; SLOs
are what they were promised. With `same_key` both send with one key and so are one tenant: what the same fleet
does without fairness.
"""

import asyncio
import json
import secrets
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from headway.config import HeadwayConfig, load_config
from headway.loadgen import LoadPlan, LoadTally, ReplayCallbacks, ReplayProgress, RequestRecord, replay
from headway.planning import Slo
from headway.words import milliseconds, percent, targets
from headway.workload import open_trace
from headway_cli.errors import CliError
from headway_cli.output import STDOUT, write_json
from headway_cli.status import SIMULATED
from headway_cli.terminal import bold, console, print_facts, print_notes, table
from headway_cli.up import running

SMALL, FLOOD, SHARED = "small", "flood", "shared"
PHASES = {"before": 0.25, "during": 0.65, "after": 1.0}
"""Where each phase ends, in shares of the duration."""

DURATION_S = 60.0
SPEED, BATCH, REPLICAS = 0.1, 6, 2
SMALL_RPS, FLOOD_RPS = 3.0, 80.0
LENGTHS = "input_tokens=200,output_tokens=16"
TIMEOUT_S = 60.0
LINE_EVERY_S = 5.0
SETTINGS: Mapping[str, object] = {
    "engine.profile": "llama-3.1-8b_h100_tp1",
    "engine.time_scale": SPEED,
    "engine.max_batch_size": BATCH,
    "engine.start_up_s": 0.5,
    "slo.ttft_ms": 3000.0,
    "slo.itl_ms": 300.0,
    "planner.policy": "static",
    "planner.static.mixed": REPLICAS,
    "pools": {"mixed": {"min_replicas": REPLICAS, "max_replicas": REPLICAS}},
    "routing.profile": "slo",
    # A busy machine is no reason to place without the Router.
    "routing.call_timeout_ms": 10_000,
    "gateway.port": 0,
    "gateway.request_timeout_s": TIMEOUT_S,
}
"""TTFT and TPOT targets are 300 ms and 30 ms at the profile's own speed."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FloodPlan:
    """What is sent, for how long, with which keys by tenant; and with which settings of the system."""

    duration_s: float
    keys: Mapping[str, str]
    config: HeadwayConfig

    @property
    def slo(self) -> Slo:
        """What every request is promised."""
        return Slo(ttft_s=self.config.slo.ttft_s, itl_s=self.config.slo.itl_s)

    def begin_s(self, tenant: str) -> float:
        """When its first request leaves."""
        return 0.0 if tenant == SMALL else PHASES["before"] * self.duration_s

    def load(self, tenant: str) -> str:
        """What it sends from then on."""
        rate_rps, end = (SMALL_RPS, "after") if tenant == SMALL else (FLOOD_RPS, "during")
        span_s = PHASES[end] * self.duration_s - self.begin_s(tenant)
        return f"steady:rate_rps={rate_rps:g},duration_s={span_s:g},{LENGTHS},seed={len(tenant)}"

    def phase(self, time_s: float) -> str:
        """The phase at a time since the load began."""
        return next(
            (name for name, end in PHASES.items() if time_s < end * self.duration_s), next(reversed(PHASES))
        )


@contextmanager
def flood_plan(
    duration_s: float = DURATION_S, settings: Mapping[str, object] | None = None, *, same_key: bool = False
) -> Iterator[FloodPlan]:
    """The plan; the file with its keys is there as long as the block lasts."""
    names = {SMALL: SHARED, FLOOD: SHARED} if same_key else {SMALL: SMALL, FLOOD: FLOOD}
    by_name = {name: secrets.token_urlsafe() for name in names.values()}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "keys.yaml")
        file.touch(mode=0o600)
        entries = [{"name": name, "key": key, "roles": ["infer"]} for name, key in by_name.items()]
        file.write_text(json.dumps(entries), encoding="ascii")
        own = {"gateway.keys_file": str(file), "routing.tenants": {name: {} for name in by_name}}
        config = load_config(None, {**SETTINGS, **own, **(settings or {})})
        keys = {tenant: by_name[name] for tenant, name in names.items()}
        yield FloodPlan(duration_s=duration_s, keys=keys, config=config)


class FloodTally:
    """Requests by tenant and phase."""

    def __init__(self, plan: FloodPlan) -> None:
        self._plan = plan
        self.cells = {(tenant, phase): LoadTally(plan.slo) for tenant in plan.keys for phase in PHASES}

    def counter(self, tenant: str) -> Callable[[RequestRecord], None]:
        """Takes the tenant's requests as they end."""
        begin_s = self._plan.begin_s(tenant)

        def count(record: RequestRecord) -> None:
            self.cells[tenant, self._plan.phase(begin_s + record.intended_s)].add(record)

        return count

    def line(self, time_s: float) -> str:
        """`   25 s   during   small 75 sent, 100 % within SLO   flood 800 sent, 61 served, 733 shed`."""
        phase = self._plan.phase(time_s)
        parts = [
            f"{tenant} {cell.requests:,} ended, {cell.completed:,} served, {cell.shed:,} shed, "
            f"{percent(cell.attainment)} within SLO"
            for tenant in self._plan.keys
            if (cell := self.cells[tenant, phase]).requests
        ]
        return f"{time_s:5.0f} s   {phase:<6}   {'   '.join(parts)}"

    def document(self) -> dict[str, Any]:
        """JSON-able: by tenant, by phase, what `headway load` says of a load."""
        return {
            tenant: {phase: self.cells[tenant, phase].summary() for phase in PHASES}
            for tenant in self._plan.keys
        }

    def notes(self) -> Iterator[str]:
        """Remarks by tenant and phase."""
        for (tenant, phase), cell in self.cells.items():
            for note in cell.notes():
                yield f"{tenant}, {phase}: {note}"


def run_flood(plan: FloodPlan, place: str | None) -> None:
    """The whole run; figures go to `place` as JSON. CliError when nothing of the small tenant was served."""
    out = console(to_stderr=place == STDOUT)
    _print_plan(plan, out)
    with running(plan.config) as deployed:
        out.print(f"Up: {deployed.openai_url}")
        tally = play(plan, deployed.url, out.print)
    _print_summary(plan, tally, out)
    if place is not None:
        slo = {"ttft_s": plan.slo.ttft_s, "itl_s": plan.slo.itl_s}
        write_json(place, {"slo": slo, "duration_s": plan.duration_s, "tenants": tally.document()})
    if not any(tally.cells[SMALL, phase].completed for phase in PHASES):
        raise CliError(f"no request of {SMALL} was served")


def play(plan: FloodPlan, url: str, say: Say) -> FloodTally:
    """Send both tenants' loads to the gateway, and say every few seconds how it goes."""
    import uvloop

    tally = FloodTally(plan)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_both(plan, url, tally, say))
    return tally


async def _both(plan: FloodPlan, url: str, tally: FloodTally, say: Say) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)

    def watch(progress: ReplayProgress) -> None:
        say(tally.line(progress.elapsed_s))

    async def send(tenant: str) -> None:
        load = LoadPlan(
            url=url,
            model=plan.config.model,
            slo=plan.slo,
            api_key=plan.keys[tenant],
            timeout_s=TIMEOUT_S,
        )
        callbacks = ReplayCallbacks(
            on_record=tally.counter(tenant),
            on_progress=watch if tenant == SMALL else None,
            progress_every_s=LINE_EVERY_S,
        )
        await asyncio.sleep(plan.begin_s(tenant))
        with open_trace(plan.load(tenant)) as trace:
            await replay(trace, load, callbacks, stop)

    await asyncio.gather(*map(send, plan.keys))
    if stop.is_set():
        raise KeyboardInterrupt


def _print_plan(plan: FloodPlan, out: Console) -> None:
    before_s, during_s = (PHASES[phase] * plan.duration_s for phase in ("before", "during"))
    alike = plan.keys[SMALL] == plan.keys[FLOOD]
    out.print(bold("A flood on the live system, on this machine"))
    out.print(
        f"{SIMULATED}, {REPLICAS} replicas at {plan.config.engine.time_scale:g} × their profile's speed"
    )
    print_facts(
        {
            "Load": f"{SMALL} {SMALL_RPS:g} requests/s for {plan.duration_s:g} s; "
            f"{FLOOD} {FLOOD_RPS:g} requests/s from {before_s:g} to {during_s:g} s; {LENGTHS}",
            "Keys": "both send with the same one: one tenant" if alike else "two, of equal weight",
            "SLO": targets(plan.slo.ttft_s, plan.slo.itl_s),
        },
        out,
    )


def _print_summary(plan: FloodPlan, tally: FloodTally, out: Console) -> None:
    head = ("tenant", "phase", "sent", "served", "shed", "failed", "within SLO", "TTFT p50, ms", "p99")
    rows = []
    for (tenant, phase), cell in tally.cells.items():
        ttft = cell.latencies["ttft_s"].summary()
        counts = (f"{count:,}" for count in (cell.requests, cell.completed, cell.shed, cell.failed))
        figures = (percent(cell.attainment), milliseconds(ttft["p50"]), milliseconds(ttft["p99"]))
        rows.append((tenant, phase, *counts, *figures))
    out.print()
    out.print(table(head, rows, names=2))
    cell = tally.cells[SMALL, "during"]
    out.print(
        f"While {FLOOD} sent {tally.cells[FLOOD, 'during'].requests:,} requests, {cell.met:,} of the "
        f"{cell.requests:,} of {SMALL} were served within their SLO."
    )
    print_notes(list(tally.notes()), out)
