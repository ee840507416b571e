"""Profiles → one self-contained HTML page: their curves, what was chosen, and the samples.

A colour is a profile; in the decode panels the lines of one colour are its contexts, the longer the darker.
Stars are the operating points: what was chosen for the load, which must lie below the targets (dashed lines).
The same profiles give the same text.
"""

from collections.abc import Iterator, Sequence

from headway.profiling.comparison import Recommendation
from headway.words import percent, shown, targets
from headway_cli.page.charts import VERMILLION, Axis, Figure, Panel, Series, Style, colour
from headway_cli.page.template import charts, figures, folded, heading, items, notes, page
from headway_cli.profile_view import ShownProfile, recommendation_lines

LENGTHS: Axis = {"title": "prompt length, tokens (log)", "scale": "log"}
USAGE: Axis = {"title": "KV cache in use", "share": True, "low": 0.0, "high": 1.0}
PANELS: Sequence[tuple[str, Axis, Axis]] = (
    ("Time to first token (TTFT)", LENGTHS, {"title": "ms (log)", "scale": "log"}),
    ("Prefill throughput", LENGTHS, {"title": "input tokens/s per GPU"}),
    ("Time between tokens (ITL)", USAGE, {"title": "ms"}),
    ("Decode throughput", USAGE, {"title": "output tokens/s per GPU"}),
)
HEAD = ("profile", "source", "GPUs", "KV tokens", "prefill", "decode", "spread")
HEIGHT_PX = 330
FAINTEST = 0.35


def render(title: str, profiles: Sequence[ShownProfile], found: Recommendation | None = None) -> str:
    """The page of profiles, and of what is recommended among them."""
    several = len(profiles) > 1
    remarks = [f"{one.name}: {note}" if several else note for one in profiles for note in one.notes]
    body = (
        *((heading("Recommended"), items(recommendation_lines(found))) if found else ()),
        charts(draw(profiles, found)),
        heading("Profiles"),
        figures(HEAD, map(_row, profiles)),
        *map(_samples, profiles),
        notes(remarks),
    )
    return page(*body, title=f"Profile of {title}", subtitle=_subtitle(profiles, found))


def _subtitle(profiles: Sequence[ShownProfile], found: Recommendation | None) -> str:
    tables = [(one.profile.prefill.samples, one.profile.decode.samples) for one in profiles]
    text = f"{sum(len(prefill.isl_tokens) + len(decode.itl_s) for prefill, decode in tables)} samples. "
    if found is not None:
        load = found.load
        text += (
            f"Recommended for {load.isl_tokens:g} input and {load.osl_tokens:g} output tokens, "
            f"{targets(load.slo.ttft_s, load.slo.itl_s, ' and ')}: the highest throughput per GPU within "
            f"these targets. Stars are the operating points, interpolated at {load.isl_tokens:g} input "
            f"tokens and, in decode, at {load.context_tokens:g} tokens of context: "
            "off the lines where that was not sampled. "
        )
    return text + "Point at a sample for its figures; click the legend to hide a profile."


def draw(profiles: Sequence[ShownProfile], found: Recommendation | None) -> Figure:
    """TTFT and prefill throughput over prompt length, ITL and decode throughput over KV usage."""
    panels: list[Panel] = [
        {"title": title, "x": along, "y": up, "series": [], "height": HEIGHT_PX, "nearest": True}
        for title, along, up in PANELS
    ]
    for place, one in enumerate(profiles):
        style: Style = {"group": one.name, "colour": colour(place), "symbol": "circle"}
        for panel, series in (*_prefill(one, style), *_decode(one, style, labelled=len(profiles) == 1)):
            panels[panel]["series"].append(series)
    if found is not None:
        slo = found.load.slo
        for panel, target_s in ((0, slo.ttft_s), (2, slo.itl_s)):
            panels[panel]["series"].append(_target(target_s * 1e3, panels[panel]["series"]))
        for panel, star in enumerate(_stars(found)):
            panels[panel]["series"].append(star)
    return {"panels": panels, "wide": True}


def _target(value_ms: float, beside: Sequence[Series]) -> Series:
    """A line at the target, as wide as what stands beside it."""
    places = [place for series in beside for place in series["x"] if place is not None]
    return {
        "name": f"SLO {value_ms:g} ms",
        "colour": VERMILLION,
        "line": "dash",
        "width": 1.5,
        "x": [min(places), max(places)],
        "y": [value_ms] * 2,
        "labels": [f"SLO {value_ms:g} ms", ""],
        "unlisted": True,
    }


def _prefill(one: ShownProfile, style: Style) -> Iterator[tuple[int, Series]]:
    samples = one.profile.prefill.samples
    isl = samples.isl_tokens.tolist()
    spreads = one.prefill_spread or [0.0] * len(isl)
    columns = ((samples.ttft_s * 1e3).tolist(), samples.throughput_per_gpu.tolist())
    for panel, (values, unit) in enumerate(zip(columns, ("ms", "tokens/s"), strict=True)):
        told = [
            f"{one.name}, {length:,.0f} tokens: {shown(value)} {unit}"
            for length, value in zip(isl, values, strict=True)
        ]
        whiskers = _whiskers(values, spreads)
        yield panel, {"name": one.name, "x": isl, "y": values, "hover": told, **style, **whiskers}


def _decode(one: ShownProfile, style: Style, *, labelled: bool) -> Iterator[tuple[int, Series]]:
    samples = one.profile.decode.samples
    of_sample, usages = samples.context_tokens.tolist(), samples.kv_usage.tolist()
    columns = (
        (2, "ms", (samples.itl_s * 1e3).tolist()),
        (3, "tokens/s", samples.throughput_per_gpu.tolist()),
    )
    contexts = sorted(set(of_sample))
    spreads = one.decode_spread or [0.0] * len(of_sample)
    for place, context in enumerate(contexts):
        rows = [row for row, here in enumerate(of_sample) if here == context]
        strength = FAINTEST + (1.0 - FAINTEST) * place / max(1, len(contexts) - 1)
        for panel, unit, column in columns:
            values = [column[row] for row in rows]
            points: Series = {
                "name": one.name,
                "x": [usages[row] for row in rows],
                "y": values,
                "opacity": strength,
                "hover": [
                    f"{one.name}, context {context:,.0f}, KV cache {percent(usages[row])}: "
                    f"{shown(column[row])} {unit}"
                    for row in rows
                ],
                **style,
                **_whiskers(values, [spreads[row] for row in rows]),
            }
            if labelled:
                points["labels"] = [""] * (len(rows) - 1) + [f"{context:,.0f}"]
            yield panel, points


def _whiskers(values: Sequence[float], spreads: Sequence[float]) -> Style:
    """The spread of the runs about their median."""
    lengths = [value * spread for value, spread in zip(values, spreads, strict=True)]
    return {"spread": lengths} if any(lengths) else {}


def _stars(found: Recommendation) -> Iterator[Series]:
    prefill = ("prefill", found.load.isl_tokens, found.prefill)
    decode = ("decode", found.decode.kv_usage, found.decode)
    for panel, (role, x, choice) in enumerate((prefill, prefill, decode, decode)):
        found_at = (choice.latency_s * 1e3, "ms"), (choice.throughput_per_gpu, "tokens/s per GPU")
        value, unit = found_at[panel % 2]
        yield {
            "name": "operating point",
            "group": "operating point",
            "colour": VERMILLION,
            "line": "none",
            "symbol": "star",
            "size": 16,
            "x": [x],
            "y": [value],
            "hover": [f"operating point: {role} TP {choice.tp}, {shown(value)} {unit}"],
        }


def _row(one: ShownProfile) -> tuple[str, ...]:
    prefill, decode = one.profile.prefill, one.profile.decode
    gpus = (prefill.gpus_per_engine, decode.gpus_per_engine)
    spreads = [*(one.prefill_spread or ()), *(one.decode_spread or ())]
    return (
        one.name,
        one.source,
        f"{gpus[0]}" if gpus[0] == gpus[1] else f"{gpus[0]} / {gpus[1]}",
        f"{decode.table.max_kv_tokens:,.0f}",
        f"{len(prefill.samples.isl_tokens)} samples",
        f"{len(decode.samples.itl_s)} samples",
        f"{percent(max(spreads))} at most" if spreads else "unknown",
    )


def _samples(one: ShownProfile) -> str:
    """All samples of one profile, on demand."""
    prefill, decode = one.profile.prefill.samples, one.profile.decode.samples
    inputs = [f"ISL {isl:,.0f}" for isl in prefill.isl_tokens]
    contexts = zip(decode.context_tokens, decode.kv_usage, strict=True)
    batches = [f"context {context:,.0f}, KV cache {percent(usage)}" for context, usage in contexts]
    rows = [
        (phase, at, f"{shown(latency_s * 1e3)} ms", shown(throughput))
        for phase, *columns in (
            ("prefill", inputs, prefill.ttft_s, prefill.throughput_per_gpu),
            ("decode", batches, decode.itl_s, decode.throughput_per_gpu),
        )
        for at, latency_s, throughput in zip(*columns, strict=True)
    ]
    table = figures(("phase", "at", "TTFT, ITL", "tokens/s/GPU"), rows)
    return folded(f"Samples of {one.name}", table)
