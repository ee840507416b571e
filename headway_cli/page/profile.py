"""Profiles → one self-contained HTML page: their curves, what was chosen, and the samples.

A colour is a profile; in the decode panels the lines of one colour are its contexts, the longer the darker.
Stars are the chosen points, dashed lines the targets. The same profiles give the same text. plotly is
imported on use.
"""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from headway.profiling.comparison import Recommendation
from headway_cli.page.charts import BLUE, GREEN, GREY, LAYOUT, ORANGE, PURPLE, SKY, VERMILLION
from headway_cli.page.template import charts, figures, grid, notes, page
from headway_cli.profile_view import ShownProfile, recommendation_lines
from headway_cli.words import targets

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION)
PANELS = (
    ("Time to first token", "input tokens", "ms (log)"),
    ("Prefill throughput", "input tokens", "input tokens/s/GPU"),
    ("Time between tokens", "KV usage", "ms"),
    ("Decode throughput", "KV usage", "output tokens/s/GPU"),
)
HEAD = ("profile", "source", "GPUs", "KV tokens", "prefill", "decode", "spread")
HEIGHT_PX = 860
FAINTEST = 0.35

Trace = dict[str, Any]
"""A line of plotly's, as keywords."""


def render(title: str, profiles: Sequence[ShownProfile], found: Recommendation | None = None) -> str:
    """The page of profiles, and of what is recommended among them."""
    several = len(profiles) > 1
    remarks = [f"{one.name}: {note}" if several else note for one in profiles for note in one.notes]
    chosen = "".join(f"<li>{escape(line)}</li>" for line in recommendation_lines(found)) if found else ""
    return page(
        title=f"Profile of {title}",
        subtitle=_subtitle(profiles, found),
        body="\n".join(
            (
                f"<h2>Recommended</h2><ul>{chosen}</ul>" if chosen else "",
                charts(_draw(profiles, found)),
                "<h2>Profiles</h2>",
                figures(HEAD, map(_row, profiles)),
                *map(_samples, profiles),
                notes(remarks),
            )
        ),
    )


def _subtitle(profiles: Sequence[ShownProfile], found: Recommendation | None) -> str:
    tables = [(one.profile.prefill.samples, one.profile.decode.samples) for one in profiles]
    text = f"{sum(len(prefill.isl_tokens) + len(decode.itl_s) for prefill, decode in tables)} samples. "
    if found is not None:
        load = found.load
        text += (
            f"Recommended for {load.isl_tokens:g} input and {load.osl_tokens:g} output tokens, "
            f"{targets(load.slo.ttft_s, load.slo.itl_s, ' and ')}: the highest throughput per GPU within "
            "these targets. "
        )
    return text + "Point at a sample for its figures; click the legend to hide a profile."


def _draw(profiles: Sequence[ShownProfile], found: Recommendation | None) -> Any:  # noqa: ANN401 - a plotly figure
    figure = grid([title for title, _, _ in PANELS], vertical_spacing=0.14, horizontal_spacing=0.1)
    traces = [] if found is None else list(_stars(found))
    for place, one in reversed(list(enumerate(profiles))):
        colour = COLOURS[place % len(COLOURS)]
        traces[:0] = [*_prefill(one, colour), *_decode(one, colour, labelled=len(profiles) == 1)]
    for panel, trace in traces:
        figure.add_trace(trace, row=panel // 2 + 1, col=panel % 2 + 1)
    if found is not None:
        slo = found.load.slo
        for row, target_s in ((1, slo.ttft_s), (2, slo.itl_s)):
            style = {"width": 1.5, "dash": "dash", "color": GREY}
            figure.add_hline(y=target_s * 1e3, line=style, row=row, col=1)
    return _lay_out(figure)


def _prefill(one: ShownProfile, colour: str) -> Iterator[tuple[int, Trace]]:
    samples = one.profile.prefill.samples
    isl = samples.isl_tokens.tolist()
    spreads = one.prefill_spread or [0.0] * len(isl)
    for panel, values in enumerate(((samples.ttft_s * 1e3).tolist(), samples.throughput_per_gpu.tolist())):
        points = {
            "x": isl,
            "y": values,
            "error_y": _whiskers(values, spreads, colour),
            "hovertemplate": f"ISL %{{x:,}}: %{{y:,.4g}}<extra>{escape(one.name)}</extra>",
        }
        yield panel, _line(one, colour, panel) | points


def _decode(one: ShownProfile, colour: str, *, labelled: bool) -> Iterator[tuple[int, Trace]]:
    samples = one.profile.decode.samples
    of_sample, usages = samples.context_tokens.tolist(), samples.kv_usage.tolist()
    columns = ((2, (samples.itl_s * 1e3).tolist()), (3, samples.throughput_per_gpu.tolist()))
    contexts = sorted(set(of_sample))
    spreads = one.decode_spread or [0.0] * len(of_sample)
    for place, context in enumerate(contexts):
        rows = [row for row, here in enumerate(of_sample) if here == context]
        strength = FAINTEST + (1.0 - FAINTEST) * place / max(1, len(contexts) - 1)
        for panel, column in columns:
            values = [column[row] for row in rows]
            points = {
                "x": [usages[row] for row in rows],
                "y": values,
                "opacity": strength,
                "mode": "lines+markers+text" if labelled else "lines+markers",
                "text": [""] * (len(rows) - 1) + [f"{context:,.0f}"],
                "textposition": "top center",
                "error_y": _whiskers(values, [spreads[row] for row in rows], colour),
                "hovertemplate": f"context {context:,.0f}, KV usage %{{x:.3f}}: %{{y:,.4g}}"
                f"<extra>{escape(one.name)}</extra>",
            }
            yield panel, _line(one, colour, panel) | points


def _line(one: ShownProfile, colour: str, panel: int) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": one.name,
        "legendgroup": one.name,
        "showlegend": panel == 0,
        "line": {"color": colour, "width": 2},
        "marker": {"size": 6},
    }


def _whiskers(values: Sequence[float], spreads: Sequence[float], colour: str) -> Trace:
    """The spread of the runs about their median."""
    lengths = [value * spread for value, spread in zip(values, spreads, strict=True)]
    return {"type": "data", "array": lengths, "visible": any(lengths), "color": colour, "thickness": 1}


def _stars(found: Recommendation) -> Iterator[tuple[int, Trace]]:
    prefill = ("prefill", found.load.isl_tokens, found.prefill)
    decode = ("decode", found.decode.kv_usage, found.decode)
    star = {"symbol": "star", "size": 15, "color": VERMILLION, "line": {"width": 1, "color": GREY}}
    for panel, (role, x, choice) in enumerate((prefill, prefill, decode, decode)):
        trace = {
            "type": "scatter",
            "mode": "markers",
            "name": "chosen",
            "legendgroup": "chosen",
            "showlegend": panel == 0,
            "x": [x],
            "y": [choice.throughput_per_gpu if panel % 2 else choice.latency_s * 1e3],
            "marker": star,
            "hovertemplate": f"{role} TP {choice.tp}: %{{y:,.4g}}<extra>chosen</extra>",
        }
        yield panel, trace


def _lay_out(figure: Any) -> Any:  # noqa: ANN401 - a plotly figure
    for panel, (_, along, up) in enumerate(PANELS):
        place = {"row": panel // 2 + 1, "col": panel % 2 + 1}
        logarithmic = {"type": "log"} if panel < 2 else {"rangemode": "tozero"}
        figure.update_xaxes(title_text=along, automargin=True, showline=False, **logarithmic, **place)
        scale = {"type": "log"} if panel == 0 else {"rangemode": "tozero"}
        figure.update_yaxes(title_text=up, zeroline=False, gridwidth=1, automargin=True, **scale, **place)
    figure.update_annotations(font={"size": 14})
    return figure.update_layout(
        **LAYOUT,
        height=HEIGHT_PX,
        margin={"l": 48, "r": 16, "t": 84, "b": 56},
        legend={"orientation": "h", "x": 0.5, "xanchor": "center", "y": 1.06, "yanchor": "bottom"},
    )


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
        f"{max(spreads):.1%} at most" if spreads else "not said",
    )


def _samples(one: ShownProfile) -> str:
    """All samples of one profile, on demand."""
    prefill, decode = one.profile.prefill.samples, one.profile.decode.samples
    inputs = [f"ISL {isl:,.0f}" for isl in prefill.isl_tokens]
    contexts = zip(decode.context_tokens, decode.kv_usage, strict=True)
    batches = [f"context {context:,.0f}, KV usage {usage:.4f}" for context, usage in contexts]
    rows = [
        (phase, at, f"{latency_s * 1e3:,.4g} ms", f"{throughput:,.4g}")
        for phase, *columns in (
            ("prefill", inputs, prefill.ttft_s, prefill.throughput_per_gpu),
            ("decode", batches, decode.itl_s, decode.throughput_per_gpu),
        )
        for at, latency_s, throughput in zip(*columns, strict=True)
    ]
    table = figures(("phase", "at", "TTFT, ITL", "tokens/s/GPU"), rows)
    return f"<details><summary>Samples of {escape(one.name)}</summary>{table}</details>"
