"""Settings of the documentation's site: `make docs` builds out/site from the Markdown pages as they are.

The sources are the repository's own pages, so that every relative link keeps its meaning; README.md is the
front. The navigation is read from docs/README.md: each group of its table, then the pages under "Decisions".
Sphinx executes this file; nothing else needs it installed.
"""

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parent.parent
FRONT = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")

project = "Headway"
html_title = "Headway"
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = [*FRONT, "docs/**.md"]
# Pages are read as GitHub reads them: its anchors, and plain text where a block names no language.
myst_heading_anchors = 6
highlight_language = "none"

html_theme = "furo"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_use_index = False
html_show_copyright = False
html_extra_path = ["../llms.txt"]


def navigation(index: str) -> dict[str, list[str]]:
    """The groups of docs/README.md in order, each with its pages as paths from the repository's root."""
    table, _, decisions = index.partition("## Decisions")
    groups: dict[str, list[str]] = {}
    for line in table.splitlines():
        if group := re.match(r"\| \*\*(.+?)\*\*", line):
            pages = groups.setdefault(group[1], [])
        elif page := re.match(r"\| \[.+?\]\((.+?\.md)\)", line):
            pages.append(page[1][3:] if page[1].startswith("../") else f"docs/{page[1]}")
    groups["Decisions"] = [f"docs/{page}" for page in re.findall(r"\]\((decisions/.+?\.md)\)", decisions)]
    return groups


def add_navigation(_app: "Sphinx", page: str, source: list[str]) -> None:
    """Append the navigation to the front page: not shown there, but it fills the sidebar."""
    if page != root_doc:
        return
    groups = navigation((ROOT / "docs" / "README.md").read_text(encoding="utf-8"))
    for group, pages in {**groups, "Everything": ["docs/README.md", "CHANGELOG.md"]}.items():
        names = "\n".join(f"/{name.removesuffix('.md')}" for name in pages)
        source[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {group}\n\n{names}\n```\n"


def add_sources(app: "Sphinx", failure: Exception | None) -> None:
    """Put each page's Markdown beside it, where llms.txt points, and the front page where servers look."""
    if failure:
        return
    for page in app.env.found_docs:
        shutil.copyfile(ROOT / f"{page}.md", app.outdir / f"{page}.md")
    shutil.copyfile(app.outdir / "README.html", app.outdir / "index.html")


def setup(app: "Sphinx") -> None:
    """Register the two steps with Sphinx."""
    app.connect("source-read", add_navigation)
    app.connect("build-finished", add_sources)
