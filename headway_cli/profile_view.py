"""Profiles and recommendations as text; latencies in milliseconds, as profile files have them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from headway.profiling.comparison import Ratios, Recommendation
from headway_cli.terminal import print_facts, print_notes
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
        """The profile's own word on where it comes from."""
        return str(self.profile.meta.get("source", "not said"))

    @property
    def notes(self) -> list[str]:
        """Remarks on the profile, then its own."""
        said = self.profile.meta.get("notes", [])
        return [*self.profile.notes, *(map(str, said) if isinstance(said, list) else [])]


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


def print_profile(shown: ShownProfile, out: Console) -> None:
    """The contents of one profile."""
    prefill, decode = shown.profile.prefill.samples, shown.profile.decode.samples
    contexts = sorted(set(decode.context_tokens.tolist()))
    gpus = (shown.profile.prefill.gpus_per_engine, shown.profile.decode.gpus_per_engine)
    facts = {
        "Profile": f"{shown.name}, {shown.source}",
        "GPUs": f"prefill {gpus[0]}, decode {gpus[1]} per engine",
        "Prefill": f"{len(prefill.isl_tokens)} samples, ISL {_range(prefill.isl_tokens)} tokens, "
        f"TTFT {_range(prefill.ttft_s * 1e3)} ms",
        "Decode": f"{len(decode.itl_s)} samples on {len(contexts)} contexts of {_range(contexts)} "
        f"tokens, KV usage {_range(decode.kv_usage)}, ITL {_range(decode.itl_s * 1e3)} ms",
        "KV cache": f"{shown.profile.decode.table.max_kv_tokens:,.0f} tokens",
    }
    print_facts(facts, out)
    print_notes(shown.notes, out, rest="--plot")


def print_ratios(title: str, ratios: Mapping[str, Ratios], out: Console) -> None:
    """The table of a comparison."""
    table = Table(title=title, box=box.SIMPLE, title_justify="left")
    for column in ("", "median", "least", "most", "samples", "outside"):
        table.add_column(column, justify="left" if not column else "right")
    for name, one in ratios.items():
        figures = ["n/a" if value is None else f"{value:.3f}" for value in (one.median, one.least, one.most)]
        table.add_row(name, *figures, str(one.points), str(one.outside))
    out.print(table)


def _range(values: Iterable[float]) -> str:
    known = list(values)
    return f"{min(known):,.4g} to {max(known):,.4g}"
