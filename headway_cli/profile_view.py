"""Profiles and recommendations as text; latencies in milliseconds, as profile files have them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from headway.engine.rules import profiled_transfer
from headway.profiling.comparison import Ratios, Recommendation
from headway.words import percent, shown
from headway_cli.terminal import bold, print_facts, print_notes, table
from interp import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownProfile:
    """A profile under a name; the spreads of its samples are known where it was measured just now."""

    name: str
    profile: Profile
    prefill_spread: Sequence[float] | None = None
    decode_spread: Sequence[float] | None = None

    @property
    def source(self) -> str:
        """Where the profile comes from."""
        return str(self.profile.meta.get("source", "unknown"))

    @property
    def notes(self) -> list[str]:
        """Remarks on the profile, then its own."""
        errors, notes = (self._said(key) for key in ("known_errors", "notes"))
        return [*(f"known error: {error}" for error in errors), *self.profile.notes, *notes]

    def _said(self, key: str) -> list[str]:
        said = self.profile.meta.get(key, [])
        return list(map(str, said)) if isinstance(said, list) else []


def recommendation_lines(found: Recommendation) -> list[str]:
    """The recommendation in sentences."""
    slo, lines = found.load.slo, []
    for role, latency, choice, target_s, signal in (
        ("prefill", "TTFT", found.prefill, slo.ttft_s, "waiting prompts per replica"),
        ("decode", "ITL", found.decode, slo.itl_s, "KV usage"),
    ):
        verdict = "within" if choice.feasible else "MISSES"
        outside = ", outside what was sampled" if choice.extrapolated else ""
        lines.append(
            f"{role}: TP {choice.tp}, {latency} {choice.latency_s * 1e3:.4g} ms "
            f"({verdict} {target_s * 1e3:g} ms{outside}), {choice.throughput_per_gpu:,.0f} tokens/s/GPU; "
            f"scale up above {choice.scale_up_above:.2f} and down below {choice.scale_down_below:.2f} "
            f"{signal}"
        )
    return lines


def print_profile(one: ShownProfile, out: Console) -> None:
    """The contents of one profile."""
    prefill, decode = one.profile.prefill.samples, one.profile.decode.samples
    contexts = sorted(set(decode.context_tokens.tolist()))
    gpus = (one.profile.prefill.gpus_per_engine, one.profile.decode.gpus_per_engine)
    facts = {
        "Profile": f"{one.name}, {one.source}",
        "GPUs": f"prefill {gpus[0]}, decode {gpus[1]} per engine",
        "Prefill": f"{len(prefill.isl_tokens)} samples, ISL {_range(prefill.isl_tokens)} tokens, "
        f"TTFT {_range(prefill.ttft_s * 1e3)} ms",
        "Decode": f"{len(decode.itl_s)} samples on {len(contexts)} contexts of {_range(contexts)} "
        f"tokens, KV usage {percent(min(decode.kv_usage))} to {percent(max(decode.kv_usage))}, "
        f"ITL {_range(decode.itl_s * 1e3)} ms",
        "KV cache": f"{one.profile.decode.table.max_kv_tokens:,.0f} tokens",
        "KV transfer": _transfer(one.profile),
    }
    if fleet := one.profile.meta.get("fleet"):
        facts["Fleet"] = "; ".join(fleet_lines(fleet))
    print_facts(facts, out)
    print_notes(one.notes, out, rest="--plot")


PROMPT_TOKENS, CONTEXT_TOKENS, HALF = 1024.0, 2048.0, 0.5
"""The places at which profiles are listed."""


def print_listed(profiles: Mapping[str, Profile], out: Console) -> None:
    """A line for each profile: where it comes from, its size, and its latencies at a few places."""
    head = ("profile", "made by", "GPUs", "KV tokens", "TTFT ms", "ITL ms, 1 request", "ITL ms, half of KV")
    out.print(table(head, (_listed(name, one) for name, one in profiles.items()), names=2, whole=(0,)))
    out.print(
        f"TTFT of {PROMPT_TOKENS:g} tokens on an idle engine; ITL at {CONTEXT_TOKENS:g} tokens of context, "
        "with half of the KV cache used or, where that is less, the largest batch. "
        "Estimates hold no engine overheads: `headway profile show NAME`."
    )


def _listed(name: str, profile: Profile) -> tuple[str, ...]:
    decode, meta = profile.decode, profile.meta
    capacity = decode.table.max_kv_tokens
    half = min(HALF, decode.largest_batch * CONTEXT_TOKENS / capacity)
    alone_s = decode.itl_s(min(1.0, CONTEXT_TOKENS / capacity), CONTEXT_TOKENS)
    tool = f"{meta['tool']} {meta['tool_version']}" if "tool" in meta else str(meta.get("source", "unknown"))
    return (
        name,
        tool,
        str(profile.gpus_per_engine),
        f"{capacity:,.0f}",
        f"{profile.prefill.ttft_s(PROMPT_TOKENS) * 1e3:.1f}",
        f"{alone_s * 1e3:.1f}",
        f"{decode.itl_s(half, CONTEXT_TOKENS) * 1e3:.1f}",
    )


def print_ratios(title: str, ratios: Mapping[str, Ratios], out: Console) -> None:
    """The table of a comparison."""
    rows = []
    for name, one in ratios.items():
        figures = ["n/a" if value is None else f"{value:.3f}" for value in (one.median, one.least, one.most)]
        rows.append([name, *figures, str(one.points), str(one.outside)])
    out.print(bold(title))
    out.print(table(("", "median", "least", "most", "samples", "outside"), rows, dense=False))


def fleet_lines(fleet: Mapping[str, Any]) -> list[str]:
    """How the profile of a fleet came about, and how well it is known."""
    lines = [f"{fleet.get('probes')} probes, {fleet.get('probe_seconds', 0.0):.0f} s of them"]
    for phase, share in fleet.get("coverage", {}).items():
        error = fleet.get("error", {}).get(phase)
        known = (
            "error not known"
            if error is None
            else f"probes were predicted within {100.0 * error:.0f} % by the median"
        )
        lines.append(f"{phase}: {100.0 * share:.0f} % of the profile seen, {known}")
    if "coverage" not in fleet:
        lines.append("the profile is what the fleet's own replicas have reported")
    return lines


def _transfer(profile: Profile) -> str:
    known = profiled_transfer(profile)
    if not known.measured:
        return "not measured: taken as 5 ms and 25 GB/s unless engine.kv_transfer is set (--kv-transfer)"
    said = profile.meta["kv_transfer"]
    pace = f"{known.bandwidth_gb_s:.3g} GB/s" if known.bandwidth_gb_s else "no bandwidth seen"
    text = f"{known.latency_ms:.3g} ms and {pace}"
    if {"tokens", "error", "spread"} <= said.keys():
        text += (
            f", measured at {_range(said['tokens'])} tokens: {100.0 * said['error']:.0f} % off by the "
            f"median, runs spread by up to {100.0 * said['spread']:.0f} %"
        )
    return text


def _range(values: Iterable[float]) -> str:
    known = list(values)
    return f"{shown(min(known))} to {shown(max(known))}"
