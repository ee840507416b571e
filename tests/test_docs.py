"""The pages for people: links lead somewhere, no page is lost, and named files and modules exist."""

import re
from pathlib import Path

import pytest

from headway_cli.app import STUDIES, VERBS

ROOT = Path(__file__).parent.parent
FRONT = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PACKAGES = ("actors", "headway", "headway_cli", "interp", "predictors", "serve_apps")
FOLDERS = (*PACKAGES, "benchmarks", "docs", "examples", "tests")
FILES = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}

LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
BACKTICKED = re.compile(r"`([^`\n]+)`")
PATH = re.compile(rf"(?:{'|'.join(FOLDERS)})/[\w./-]*")
FILE = re.compile(r"\w+\.py")
MODULE = re.compile(rf"(?:{'|'.join(PACKAGES)})(?:\.\w+)+")
EXTENSION_POINTS = re.compile(r"headway\.(?:policies|routing_plugins|engines|connectors|trace_formats)")

pages = pytest.mark.parametrize("page", FRONT + DOCS, ids=lambda page: str(page.relative_to(ROOT)))


@pages
def test_links_lead_somewhere(page: Path) -> None:
    broken = [
        f"{target}#{anchor}"
        for target, anchor in links(page)
        if not target.exists() or (anchor and anchor not in anchors(target))
    ]
    assert not broken


def test_every_page_is_reachable_from_the_index() -> None:
    reached: set[Path] = set()
    left = [ROOT / "docs" / "README.md"]
    while left:
        page = left.pop()
        if page not in reached and page in DOCS:
            reached.add(page)
            left += [target for target, _ in links(page)]
    assert not set(DOCS) - reached


@pages
def test_files_and_modules_that_are_named_exist(page: Path) -> None:
    names = {name.split()[0].rstrip(",") for name in BACKTICKED.findall(prose(page)) if name.strip()}
    gone = {
        name
        for name in names
        if (PATH.fullmatch(name) and not (ROOT / name).exists())
        or (FILE.fullmatch(name) and name not in FILES)
        or (MODULE.fullmatch(name) and not EXTENSION_POINTS.fullmatch(name) and not is_defined(name))
    }
    assert not gone


def test_the_front_page_names_every_verb() -> None:
    text = prose(FRONT[0])
    assert not [verb for verb in (*VERBS, *STUDIES) if f"`{verb}`" not in text]


def prose(page: Path) -> str:
    """The page without its fenced code."""
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[tuple[Path, str]]:
    """The files of this repository that a page links to, each with its anchor or an empty string."""
    found = (link.partition("#") for link in LINK.findall(prose(page)) if ":" not in link)
    return [((page.parent / path).resolve() if path else page, anchor) for path, _, anchor in found]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def is_defined(name: str) -> bool:
    """Whether a dotted name is a package, a module, or occurs in the module that its beginning names."""
    path, parts = ROOT, name.split(".")
    while parts and (path / parts[0]).is_dir():
        path /= parts.pop(0)
    if not parts:
        return True
    module = path / f"{parts[0]}.py"
    if module.exists():
        parts.pop(0)
    else:
        module = path / "__init__.py"
    return all(re.search(rf"\b{part}\b", module.read_text(encoding="utf-8")) for part in parts)
