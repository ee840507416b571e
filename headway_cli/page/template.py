"""The renderer of all pages: cards, sentences, tables, charts, notes; nothing from a network.

Every page is a title, a subtitle and blocks. A block is HTML that a function here made of plain text.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template

from headway_cli.page.charts import Figure, drawn

NOTES_SHOWN = 5
BAR_SHARE = 0.6
"""Of the width is the longest bar: its words stand behind it."""


def _file(name: str) -> str:
    """A file beside this module, without the end of its last line."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8").removesuffix("\n")


def page(*body: str, title: str, subtitle: str) -> str:
    """The page; `title` and `subtitle` are text, `body` are blocks."""
    texts = {"title": escape(title), "subtitle": escape(subtitle), "body": "\n".join(filter(None, body))}
    assets = {"style": _file("style.css"), "script": _file("charts.js")}
    return Template(_file("page.html")).substitute(texts, **assets) + "\n"


def heading(text: str) -> str:
    """The title of a part."""
    return f"<h2>{escape(text)}</h2>"


def charts(figure: Figure) -> str:
    """The figure as a part of a page."""
    return f'<div class="charts"><script type="application/json">{drawn(figure)}</script></div>'


def cards(every: Iterable[str]) -> str:
    """The row of figures at the top."""
    return f'<section class="cards">{"".join(every)}</section>'


def card(name: str, value: str, remark: str, verdict: str = "") -> str:
    """One figure of the row at the top; `verdict` is good, bad or nothing."""
    return (
        f'<div class="card {verdict}"><div class="name">{escape(name)}</div>'
        f'<div class="value">{escape(value)}</div><div class="remark">{escape(remark)}</div></div>'
    )


def hint(text: str) -> str:
    """An explanation in small print."""
    return f'<p class="hint">{escape(text)}</p>'


def pair(one: str, other: str) -> str:
    """Two blocks beside each other, where there is room."""
    return f'<section class="pair"><div>{one}</div>{other}</section>'


def folded(summary: str, block: str) -> str:
    """A block that is shown on demand."""
    return f"<details><summary>{escape(summary)}</summary>{block}</details>"


def bars(key: Mapping[str, str], rows: Iterable[tuple[str, Sequence[tuple[str, float, str]]]]) -> str:
    """Horizontal bars: for each row its name and, for each bar, colour, length in [0, 1] and words behind it.

    `key` has the name of each colour.
    """
    names = "".join(
        f'<span><i style="background:{colour}"></i>{escape(name)}</span>' for name, colour in key.items()
    )
    lines = ""
    for name, ways in rows:
        drawn_bars = "".join(
            f'<div class="bar"><i style="background:{colour};width:{BAR_SHARE * length:.1%}"></i>'
            f"{escape(words)}</div>"
            for colour, length, words in ways
        )
        lines += f'<div class="of">{escape(name)}</div><div class="ways">{drawn_bars}</div>'
    return f'<div class="key">{names}</div><div class="bars">{lines}</div>'


def named(lines: Mapping[str, str]) -> str:
    """A list of names and sentences."""
    found = "".join(f"<li><b>{escape(name)}</b>: {escape(text)}</li>" for name, text in lines.items())
    return f"<ul>{found}</ul>"


def figures(
    head: Iterable[str], body: Iterable[Iterable[str]], texts: Container[int] = frozenset({1})
) -> str:
    """A table; its first column and those of `texts` hold words, which may have lines, the others figures."""

    def row(tag: str, cells: Iterable[str]) -> str:
        return "".join(
            f"<{tag}{' class=text' if place in texts else ''}>{escape(cell)}</{tag}>"
            for place, cell in enumerate(cells)
        )

    titles, lines = row("th", head), "".join(f"<tr>{row('td', cells)}</tr>" for cells in body)
    table = f"<table><thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table>"
    return f'<div class="wide figures">{table}</div>'


def notes(texts: Sequence[str]) -> str:
    """The section of notes: the first ones at once, the rest on demand."""
    shown, rest = items(texts[:NOTES_SHOWN]), items(texts[NOTES_SHOWN:])
    more = folded(f"{len(texts) - NOTES_SHOWN} more", rest) if rest else ""
    return f'<section id="notes"><h2>Notes</h2>{shown or "<p>none</p>"}{more}</section>'


def items(texts: Sequence[str]) -> str:
    """A list; nothing where there is none."""
    found = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<ul>{found}</ul>" if found else ""
