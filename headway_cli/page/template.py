"""The skeleton that every page fills in: structure, style, script of charts; nothing from a network."""

from collections.abc import Container, Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template

from headway_cli.page.charts import Figure, drawn

NOTES_SHOWN = 5
BAR_SHARE = 0.6
"""Of the width is the longest bar: its words stand behind it."""


def part(name: str) -> Template:
    """A file beside this module, without the end of its last line."""
    return Template(files(__package__).joinpath(name).read_text(encoding="utf-8").removesuffix("\n"))


def page(*, title: str, subtitle: str, body: str) -> str:
    """The page; `title` and `subtitle` are text, `body` is HTML."""
    texts = {name: part(name).template for name in ("style.css", "charts.js")}
    titles = {"title": escape(title), "subtitle": escape(subtitle)}
    shown = {"style": texts["style.css"], "script": texts["charts.js"]}
    return part("page.html").substitute(titles, body=body, **shown) + "\n"


def charts(figure: Figure) -> str:
    """The figure as a part of a page."""
    return f'<div class="charts"><script type="application/json">{drawn(figure)}</script></div>'


def card(name: str, value: str, remark: str, verdict: str = "") -> str:
    """One figure of the row at the top; `verdict` is good, bad or nothing."""
    return (
        f'<div class="card {verdict}"><div class="name">{escape(name)}</div>'
        f'<div class="value">{escape(value)}</div><div class="remark">{escape(remark)}</div></div>'
    )


def hint(text: str) -> str:
    """An explanation in small print."""
    return f'<p class="hint">{escape(text)}</p>'


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
    items = "".join(f"<li><b>{escape(name)}</b>: {escape(text)}</li>" for name, text in lines.items())
    return f"<ul>{items}</ul>"


def figures(
    head: Iterable[str], body: Iterable[Iterable[str]], texts: Container[int] = frozenset({1})
) -> str:
    """A table; its first column and those of `texts` hold words, the others figures."""

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
    shown, rest = _items(texts[:NOTES_SHOWN]), _items(texts[NOTES_SHOWN:])
    more = f"<details><summary>{len(texts) - NOTES_SHOWN} more</summary>{rest}</details>" if rest else ""
    return f'<section id="notes"><h2>Notes</h2>{shown or "<p>none</p>"}{more}</section>'


def _items(texts: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>" if items else ""
