"""Profiles → one self-contained HTML page: their curves, what was chosen, and the samples.

A pure function of the document (`headway_cli.profile_view`). A colour is a profile; in the decode panels
the lines of one colour are its contexts, the longer the darker. Stars are the chosen points, dashed lines the
targets. plotly is imported on use.
"""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from headway_cli.page.charts import BLUE, GREEN, GREY, LAYOUT, ORANGE, PURPLE, SKY, VERMILLION
from headway_cli.page.template import charts, figures, notes, page
from headway_cli.profile_view import Document, recommendation_lines

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION)
PANELS = (
    ("Time to first token", "input tokens", "ms (log)"),
    ("Prefill throughput", "input tokens", "input tokens/s/GPU"),
    ("Time between tokens", "KV usage", "ms"),
    ("Decode throughput", "KV usage", "output tokens/s/GPU"),
)
HEIGHT_PX = 860
FAINTEST = 0.35

Trace = dict[str, Any]


def render(document: Document) -> str:
    """The page; the same document gives the same text."""
    profiles, found = document["profiles"], document["recommendation"]
    several = len(profiles) > 1
    remarks = [
        f"{entry['name']}: {note}" if several else note for entry in profiles for note in entry["notes"]
    ]
    chosen = "".join(f"<li>{escape(line)}</li>" for line in recommendation_lines(found)) if found else ""
    return page(
        title=f"Profile of {document['title']}",
        subtitle=_subtitle(profiles, found),
        body="\n".join(
            (
                f"<h2>Recommended</h2><ul>{chosen}</ul>" if chosen else "",
                charts(_draw(profiles, found)),
                "<h2>Profiles</h2>",
                figures(
                    ("profile", "source", "GPUs", "KV tokens", "prefill", "decode", "spread"), _rows(profiles)
                ),
                *(_samples(entry) for entry in profiles),
                notes(remarks),
            )
        ),
    )


def _subtitle(profiles: Sequence[Document], found: Document | None) -> str:
    sampled = sum(len(entry["prefill"]["isl"]) + len(entry["decode"]["itl_ms"]) for entry in profiles)
    text = f"{sampled} samples. "
    if found is not None:
        text += (
            f"Recommended for {found['isl']:g} input and {found['osl']:g} output tokens, TTFT "
            f"{found['ttft_ms']:g} ms and ITL {found['itl_ms']:g} ms: the highest throughput per GPU within "
            "these targets. "
        )
    return text + "Point at a sample for its figures; click the legend to hide a profile."


def _draw(profiles: Sequence[Document], found: Document | None) -> Any:  # noqa: ANN401 - a plotly figure
    from plotly.subplots import make_subplots

    figure = make_subplots(
        rows=2,
        cols=2,
        subplot_titles=[f"<b>{title}</b>" for title, _, _ in PANELS],
        vertical_spacing=0.14,
        horizontal_spacing=0.1,
    )
    for entry, colour in zip(profiles, _colours(len(profiles)), strict=True):
        labelled = len(profiles) == 1
        for panel, trace in (*_prefill(entry, colour), *_decode(entry, colour, labelled=labelled)):
            figure.add_trace(trace, row=panel // 2 + 1, col=panel % 2 + 1)
    for panel, trace in _stars(found) if found else ():
        figure.add_trace(trace, row=panel // 2 + 1, col=panel % 2 + 1)
    if found is not None:
        for row, key in ((1, "ttft_ms"), (2, "itl_ms")):
            target = {"width": 1.5, "dash": "dash", "color": GREY}
            figure.add_hline(y=found[key], line=target, row=row, col=1)
    return _lay_out(figure)


def _colours(count: int) -> list[str]:
    return [COLOURS[place % len(COLOURS)] for place in range(count)]


def _prefill(entry: Document, colour: str) -> Iterator[tuple[int, Trace]]:
    table = entry["prefill"]
    spreads = table["spread"] or [None] * len(table["isl"])
    for panel, key in enumerate(("ttft_ms", "throughput")):
        yield (
            panel,
            _line(entry, colour, panel)
            | {
                "x": table["isl"],
                "y": table[key],
                "error_y": _whiskers(table[key], spreads, colour),
                "hovertemplate": f"ISL %{{x:,}}: %{{y:,.4g}}<extra>{escape(entry['name'])}</extra>",
            },
        )


def _decode(entry: Document, colour: str, *, labelled: bool) -> Iterator[tuple[int, Trace]]:
    table = entry["decode"]
    contexts = sorted(set(table["context"]))
    spreads = table["spread"] or [None] * len(table["context"])
    for place, context in enumerate(contexts):
        rows = [row for row, here in enumerate(table["context"]) if here == context]
        strength = FAINTEST + (1.0 - FAINTEST) * place / max(1, len(contexts) - 1)
        for panel, key in ((2, "itl_ms"), (3, "throughput")):
            values = [table[key][row] for row in rows]
            yield (
                panel,
                _line(entry, colour, panel)
                | {
                    "x": [table["kv_usage"][row] for row in rows],
                    "y": values,
                    "opacity": strength,
                    "mode": "lines+markers+text" if labelled else "lines+markers",
                    "text": [""] * (len(rows) - 1) + [f"{context:,.0f}"],
                    "textposition": "top center",
                    "error_y": _whiskers(values, [spreads[row] for row in rows], colour),
                    "hovertemplate": f"context {context:,.0f}, KV usage %{{x:.3f}}: %{{y:,.4g}}"
                    f"<extra>{escape(entry['name'])}</extra>",
                },
            )


def _line(entry: Document, colour: str, panel: int) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": entry["name"],
        "legendgroup": entry["name"],
        "showlegend": panel == 0,
        "line": {"color": colour, "width": 2},
        "marker": {"size": 6},
    }


def _whiskers(values: Sequence[float], spreads: Sequence[float | None], colour: str) -> Trace:
    """The spread of the runs about their median."""
    lengths = [value * (spread or 0.0) for value, spread in zip(values, spreads, strict=True)]
    return {"type": "data", "array": lengths, "visible": any(lengths), "color": colour, "thickness": 1}


def _stars(found: Document) -> Iterator[tuple[int, Trace]]:
    places = (
        (0, "prefill", found["isl"], "latency_ms"),
        (1, "prefill", found["isl"], "throughput"),
        (2, "decode", found["decode"]["kv_usage"], "latency_ms"),
        (3, "decode", found["decode"]["kv_usage"], "throughput"),
    )
    for panel, role, x, key in places:
        choice: Mapping[str, Any] = found[role]
        yield (
            panel,
            {
                "type": "scatter",
                "mode": "markers",
                "name": "chosen",
                "legendgroup": "chosen",
                "showlegend": panel == 0,
                "x": [x],
                "y": [choice[key]],
                "marker": {
                    "symbol": "star",
                    "size": 15,
                    "color": VERMILLION,
                    "line": {"width": 1, "color": GREY},
                },
                "hovertemplate": f"{role} TP {choice['tp']}: %{{y:,.4g}}<extra>chosen</extra>",
            },
        )


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


def _rows(profiles: Sequence[Document]) -> Iterator[tuple[str, ...]]:
    for entry in profiles:
        gpus = entry["gpus"]
        spreads = [*(entry["prefill"]["spread"] or ()), *(entry["decode"]["spread"] or ())]
        yield (
            entry["name"],
            entry["source"],
            str(gpus["prefill"])
            if gpus["prefill"] == gpus["decode"]
            else f"{gpus['prefill']} / {gpus['decode']}",
            f"{entry['max_kv_tokens']:,.0f}",
            f"{len(entry['prefill']['isl'])} samples",
            f"{len(entry['decode']['itl_ms'])} samples",
            f"{max(spreads):.1%} at most" if spreads else "not said",
        )


def _samples(entry: Document) -> str:
    """All samples of one profile, on demand."""
    prefill, decode = entry["prefill"], entry["decode"]
    first = (
        ("prefill", f"ISL {isl:,.0f}", f"{ms:,.4g} ms", f"{throughput:,.4g}")
        for isl, ms, throughput in zip(prefill["isl"], prefill["ttft_ms"], prefill["throughput"], strict=True)
    )
    columns = (decode[key] for key in ("context", "kv_usage", "itl_ms", "throughput"))
    second = (
        ("decode", f"context {context:,.0f}, KV usage {kv:.4f}", f"{ms:,.4g} ms", f"{throughput:,.4g}")
        for context, kv, ms, throughput in zip(*columns, strict=True)
    )
    table = figures(("phase", "at", "TTFT, ITL", "tokens/s/GPU"), (*first, *second))
    return f"<details><summary>Samples of {escape(entry['name'])}</summary>{table}</details>"
