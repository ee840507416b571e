"""The skeleton that every page fills in: structure and style, without anything from a network."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

CHARTS_ID = "charts"
NOTES_SHOWN = 5
CONFIG = {
    "displaylogo": False,
    "responsive": True,
    "modeBarButtonsToRemove": ["lasso2d", "select2d", "autoScale2d"],
}


def part(name: str) -> Template:
    """A file beside this module, without the end of its last line."""
    return Template(files(__package__).joinpath(name).read_text(encoding="utf-8").removesuffix("\n"))


def page(*, title: str, subtitle: str, body: str) -> str:
    """The page; `title` and `subtitle` are text, `body` is HTML."""
    from plotly.offline import get_plotlyjs

    style = part("style.css").template
    titles = {"title": escape(title), "subtitle": escape(subtitle)}
    return part("page.html").substitute(titles, body=body, style=style, library=get_plotlyjs()) + "\n"


def charts(figure: Any) -> str:  # noqa: ANN401 - a plotly figure
    """The figure as a part of a page; a page has one."""
    html: str = figure.to_html(
        full_html=False, include_plotlyjs=False, div_id=CHARTS_ID, config=CONFIG, default_height="100%"
    )
    return html


def grid(titles: Sequence[str], **spacing: float) -> Any:  # noqa: ANN401 - a plotly figure
    """A figure of panels in two columns."""
    from plotly.subplots import make_subplots

    bold = [f"<b>{title}</b>" for title in titles]
    return make_subplots(rows=len(titles) // 2, cols=2, subplot_titles=bold, **spacing)


def named(lines: Mapping[str, str]) -> str:
    """A list of names and sentences."""
    items = "".join(f"<li><b>{escape(name)}</b>: {escape(text)}</li>" for name, text in lines.items())
    return f"<ul>{items}</ul>"


def figures(head: Iterable[str], body: Iterable[Iterable[str]]) -> str:
    """A table of text, whose first two columns say what a row is of."""
    titles = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>" for cells in body)
    table = f"<table><thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table>"
    return f'<div class="wide figures">{table}</div>'


def notes(texts: Sequence[str]) -> str:
    """The section of notes: the first ones at once, the rest on demand."""
    shown, rest = _items(texts[:NOTES_SHOWN]), _items(texts[NOTES_SHOWN:])
    more = f"<details><summary>{len(texts) - NOTES_SHOWN} more</summary>{rest}</details>" if rest else ""
    return f'<section id="notes"><h2>Notes</h2>{shown or "<p>none</p>"}{more}</section>'


def _items(texts: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>" if items else ""
