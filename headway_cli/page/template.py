"""The skeleton that every page fills in: structure and style, without anything from a network."""

from collections.abc import Iterable, Sequence
from html import escape
from string import Template
from typing import Any

CHARTS_ID = "charts"
NOTES_SHOWN = 5
CONFIG = {
    "displaylogo": False,
    "responsive": True,
    "modeBarButtonsToRemove": ["lasso2d", "select2d", "autoScale2d"],
}

STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --soft: #5b6875; --line: #d9dfe5;
  --paper: #ffffff; --card: #f4f6f8; --good: #00734f; --bad: #b34700; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8edf2; --soft: #9fb0c0; --line: #36424e;
  --paper: #12181f; --card: #1c252f; --good: #4ed1a5; --bad: #ff9e57; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 28px 24px 60px; max-width: 1280px;
  background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
h1 { font-size: 24px; line-height: 1.25; margin: 0 0 6px; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 30px 0 8px; }
p { margin: 0; color: var(--soft); max-width: 90ch; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px;
  margin: 22px 0; }
.card { background: var(--card); border-radius: 8px; padding: 12px 14px; border-left: 4px solid var(--line); }
.card.good { border-left-color: var(--good); } .card.bad { border-left-color: var(--bad); }
.name, .remark { font-size: 13px; color: var(--soft); }
.value { font-size: 24px; font-weight: 650; font-variant-numeric: tabular-nums; white-space: nowrap; }
.good .value { color: var(--good); } .bad .value { color: var(--bad); }
.pair { display: grid; grid-template-columns: minmax(0, 2fr) minmax(0, 3fr); gap: 8px 40px; }
ul { margin: 0; padding-left: 18px; } li { margin: 3px 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { text-align: right; padding: 5px 10px; border-bottom: 1px solid var(--line); vertical-align: top; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
.figures th, .figures td { white-space: nowrap; }
.figures th:nth-child(2), .figures td:nth-child(2) { text-align: left; }
thead th { color: var(--soft); font-weight: 600; }
td.why { text-align: left; min-width: 30ch; } thead th:last-child { padding-right: 0; }
details th:last-child { text-align: left; }
#notes details { margin: 6px 0 0; } #notes summary { font-size: 14px; font-weight: 600; padding: 2px 0; }
td.moved { font-weight: 700; color: var(--bad); }
details { margin-top: 24px; } summary { cursor: pointer; font-size: 17px; font-weight: 650; padding: 6px 0; }
#charts text:not(.hovertext text) { fill: var(--ink) !important; }
#charts .gridlayer path { stroke: var(--line) !important; }
#charts .barlayer g.errorbar path { stroke: var(--ink) !important; }
#charts .modebar-btn path { fill: var(--soft) !important; }
.hint { font-size: 13px; }
@media (prefers-color-scheme: dark) { #charts .plot { filter: brightness(1.3); } }
@media (max-width: 700px) { body { padding: 18px 12px 40px; } h1 { font-size: 20px; }
  .pair { grid-template-columns: minmax(0, 1fr); } .value { font-size: 20px; }
  .cards { grid-template-columns: repeat(2, minmax(0, 1fr)); } }
"""

PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Headway: $title</title>
<style>$style</style>
<script>$library</script>
</head>
<body>
<h1>$title</h1>
<p>$subtitle</p>
$body
</body>
</html>
""")


def page(*, title: str, subtitle: str, body: str) -> str:
    """The page; `title` and `subtitle` are text, `body` is HTML."""
    from plotly.offline import get_plotlyjs

    return PAGE.substitute(
        title=escape(title), subtitle=escape(subtitle), body=body, style=STYLE, library=get_plotlyjs()
    )


def charts(figure: Any) -> str:  # noqa: ANN401 - a plotly figure
    """The figure as a part of a page; a page has one."""
    html: str = figure.to_html(
        full_html=False, include_plotlyjs=False, div_id=CHARTS_ID, config=CONFIG, default_height="100%"
    )
    return html


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
