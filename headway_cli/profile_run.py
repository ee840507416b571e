"""One run of the profiler: sweep every TP, write their profiles and the recommendation.

DIR/measurements/kv-transfer-tpN.json    the KV transfer, where it was asked for
DIR/measurements/tpN.jsonl     the points, as they come; another start goes on from them
DIR/tpN                        a profile directory for each TP measured so far, now or earlier
DIR/recommended                that of the recommended TPs: prefill table of one, decode table of the other
DIR/report.html                the curves and what was chosen
"""

import asyncio
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway import profiling
from headway.config import ENGINES, Role
from headway.engine.kinds import engine_kind
from headway.planning.types import Slo
from headway.profiling.comparison import Recommendation, TargetLoad, recommend
from headway.profiling.sweep.measure import SweepOptions, sweep
from headway.profiling.sweep.measurements import (
    Measurements,
    SweptTables,
    open_measurements,
    read_measurements,
    swept_tables,
)
from headway.profiling.sweep.points import sweep_points
from headway_cli.errors import CliError
from headway_cli.profile_targets import ProfileOptions, check_budget, configuration, is_endpoint, open_target
from headway_cli.profile_transfer import check_transfer, measure_transfer, read_transfer, wants_transfer
from headway_cli.terminal import bar
from interp import Profile, build_profile, save_profile

MEASUREMENTS, RECOMMENDED, PAGE = "measurements", "recommended", "report.html"
FILE_OF_TP = re.compile(r"tp([0-9]+)\.jsonl")
TRANSFER_KEYS = ("kv_bytes_per_token", "kv_transfer")
SECONDS_PER_MINUTE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Swept:
    """The measurements of one TP: its question, tables and profile."""

    question: Mapping[str, Any]
    tables: SweptTables
    profile: Profile


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """The outcome of a run: every TP measured so far, the recommendation, and which TPs are not complete."""

    swept: Mapping[int, Swept]
    recommendation: Recommendation
    incomplete: Sequence[int]


def run_profile(options: ProfileOptions) -> Run:
    """Sweep, and write everything but the page. Raises CliError and ProfilingError, one line each."""
    root = _checked(options)
    tps, target = _sizes(options), configuration(options, 1).slo
    slo = Slo(ttft_s=target.ttft_s, itl_s=target.itl_s)
    load = TargetLoad(isl_tokens=options.isl, osl_tokens=options.osl, slo=slo)
    incomplete = asyncio.run(_sweep_all(options, tps, root))
    swept = read_sweeps(root)
    found = recommend({tp: one.profile for tp, one in swept.items()}, load)
    for tp, one in swept.items():
        save_profile(root / f"tp{tp}", one.tables.prefill, one.tables.decode, one.profile.meta)
    chosen_prefill, chosen_decode = swept[found.prefill.tp], swept[found.decode.tp]
    meta = _recommended_meta(chosen_prefill, chosen_decode, found)
    save_profile(root / RECOMMENDED, chosen_prefill.tables.prefill, chosen_decode.tables.decode, meta)
    return Run(swept=swept, recommendation=found, incomplete=incomplete)


def read_sweeps(root: Path) -> Mapping[int, Swept]:
    """Every TP of which enough was measured for a profile, ascending. IncompleteError where none is."""
    files = ((FILE_OF_TP.fullmatch(path.name), path) for path in (root / MEASUREMENTS).iterdir())
    found = {int(match.group(1)): read_measurements(path) for match, path in files if match}
    swept, missing = dict[int, Swept](), list[str]()
    for tp in sorted(found):
        try:
            swept[tp] = _swept(tp, found[tp], read_transfer(_transfer_file(root, tp)))
        except profiling.IncompleteError as error:
            missing.append(f"tp {tp}: {error}")
    if not swept:
        raise profiling.IncompleteError("; ".join(missing))
    return swept


def _swept(tp: int, measurements: Measurements, transfer: Mapping[str, Any]) -> Swept:
    question, limits = measurements.question, measurements.question["limits"]
    tables = swept_tables(measurements.points, gpus=tp, max_kv_tokens=int(limits["max_kv_tokens"]))
    meta = {
        "source": f"measured by headway profile on {question['engine']}",
        "engine": question["engine"],
        "model": question["model"],
        "tp": tp,
        "gpus_per_engine": tp,
        "repeats": question["repeats"],
        "max_kv_tokens": limits["max_kv_tokens"],
        "max_batch_size": limits["max_batch"],
        "settings": question.get("settings"),
        "largest_spread": max((*tables.prefill_spread, *tables.decode_spread)),
        "notes": list(tables.notes),
        **transfer,
    }
    return Swept(question=question, tables=tables, profile=build_profile(tables.prefill, tables.decode, meta))


def _recommended_meta(prefill: Swept, decode: Swept, found: Recommendation) -> dict[str, Any]:
    same = found.prefill.tp == found.decode.tp
    kept = ("source", "engine", "model", "repeats", "max_batch_size", *TRANSFER_KEYS)
    meta = {key: decode.profile.meta[key] for key in kept if key in decode.profile.meta}
    if same:
        meta["tp"] = meta["gpus_per_engine"] = found.decode.tp
    load = found.load
    return meta | {
        "prefill_tp": found.prefill.tp,
        "decode_tp": found.decode.tp,
        "recommended_for": {
            "isl": load.isl_tokens,
            "osl": load.osl_tokens,
            "ttft_ms": load.slo.ttft_s * 1e3,
            "itl_ms": load.slo.itl_s * 1e3,
            "met": found.prefill.feasible and found.decode.feasible,
        },
        "scaling": {
            "prefill_queue": [found.prefill.scale_down_below, found.prefill.scale_up_above],
            "decode_kv_usage": [found.decode.scale_down_below, found.decode.scale_up_above],
        },
        "notes": list(dict.fromkeys((*prefill.tables.notes, *decode.tables.notes))),
    }


async def _sweep_all(options: ProfileOptions, tps: Sequence[int], root: Path) -> list[int]:
    """The TPs of which points are left; the budget is shared evenly among those to come."""
    clock = asyncio.get_running_loop().time
    ends_s = None if options.budget is None else clock() + options.budget * SECONDS_PER_MINUTE
    incomplete = []
    for place, tp in enumerate(tps):
        now_s = clock()
        share_s = None if ends_s is None else now_s + (ends_s - now_s) / (len(tps) - place)
        if not await _sweep_one(options, tp, root, share_s):
            incomplete.append(tp)
    return incomplete


async def _sweep_one(options: ProfileOptions, tp: int, root: Path, ends_s: float | None) -> bool:
    clock = asyncio.get_running_loop().time
    async with open_target(options, tp) as opened:
        path = root / MEASUREMENTS / f"tp{tp}.jsonl"
        measurements = open_measurements(path, opened.question)
        with bar(f"tp {tp}") as show:
            asked = SweepOptions(
                clock=clock,
                progress=lambda done, total, _: show(done, total) if show else None,
                repeats=options.repeats,
                seed=secrets.randbits(32),
                ends_s=ends_s,
            )
            done = await sweep(opened.target, sweep_points(opened.limits), measurements, asked)
    # The engine that was swept is gone: not every machine has room for three.
    if wants_transfer(options):
        await measure_transfer(options, tp, opened.limits, _transfer_file(root, tp))
    return done


def _transfer_file(root: Path, tp: int) -> Path:
    return root / MEASUREMENTS / f"kv-transfer-tp{tp}.json"


def _checked(options: ProfileOptions) -> Path:
    """The output directory, once the flags make sense."""
    if options.engine is None or options.output is None:
        missing = "--engine" if options.engine is None else "--output"
        raise CliError(f"{missing}: needed (or --fleet, or one of: list, show, compare, import, export)")
    if options.engine not in ENGINES and not is_endpoint(options.engine):
        raise CliError(
            f"--engine: {options.engine!r} is neither {' nor '.join(ENGINES.names())} nor an address"
        )
    check_budget(options)
    check_transfer(options)
    if options.repeats < 1:
        raise CliError(f"--repeats: expected at least 1, got {options.repeats}")
    root = Path(options.output)
    if root.exists() and not root.is_dir():
        raise profiling.OutputExistsError(f"--output: {root} is not a directory")
    if root.is_dir() and any(root.iterdir()) and not (root / MEASUREMENTS).is_dir():
        raise profiling.OutputExistsError(f"--output: {root} is not empty and holds no earlier run")
    return root


def _sizes(options: ProfileOptions) -> list[int]:
    sizes = [part.strip() for part in options.tp.split(",")]
    if not all(size.isdecimal() and int(size) >= 1 for size in sizes) or len(set(sizes)) < len(sizes):
        raise CliError(f"--tp: expected distinct sizes such as 1,2,4, got {options.tp!r}")
    if options.engine and is_endpoint(options.engine) and len(sizes) > 1:
        raise CliError("--tp: an endpoint has one size; run again with the same --output for the next one")
    if not is_endpoint(options.engine or "") and sizes != ["1"]:
        config = configuration(options, 1)
        if engine_kind(config).resources(config, Role.MIXED).gpus == 0:
            raise CliError("--tp: engines on CPUs are not split; 1 is their only size")
    return [int(size) for size in sizes]
