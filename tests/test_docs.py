"""The pages for people: links lead somewhere, no page is lost, and named files and modules exist."""

import re
import runpy
from itertools import pairwise
from pathlib import Path
from textwrap import dedent

import pytest
import yaml

from headway.config import HeadwayConfig, load_fleet, resolve_profile
from tests.packages import PACKAGES, ROOT

FRONT = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
DATED = ROOT / "docs" / "measurements"
"""Kept as they were written: what their commands and paths name may be gone."""

INDEX = ROOT / "docs" / "README.md"
MACHINES = ROOT / "llms.txt"
FOLDERS = (*PACKAGES, "benchmarks", "docs", "examples", "tests")
FILES = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}

LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
YAML = re.compile(r"^ *```yaml\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
BACKTICKED = re.compile(r"`([^`\n]+)`")
PATH = re.compile(rf"(?:{'|'.join(FOLDERS)})/[\w./-]*")
FILE = re.compile(r"\w+\.py")
MODULE = re.compile(rf"(?:{'|'.join(PACKAGES)})(?:\.(?!yaml)\w+)+")
EXTENSION_POINTS = re.compile(
    r"headway\.(?:policies|routing_plugins|engines|connectors|trace_formats|verbs|reports)"
)
SPANS = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "serve_apps" / "tracing").glob("*.py"))
"""The source of spans' attributes, which have names like modules."""


def _each(of: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", of, ids=lambda page: str(page.relative_to(ROOT)))


pages = _each([*FRONT, MACHINES, *DOCS])
current = _each([*FRONT, MACHINES, *(page for page in DOCS if page.parent != DATED)])


@pages
def test_links_lead_somewhere(page: Path) -> None:
    broken = [
        f"{target}#{anchor}"
        for target, anchor in links(page)
        if not target.is_file() or (anchor and anchor not in anchors(target))
    ]
    assert not broken


@pages
def test_headings_skip_no_level(page: Path) -> None:
    """The site's build refuses what GitHub lets pass."""
    levels = [len(marks) for marks in re.findall(r"^(#+) ", prose(page), re.MULTILINE)]
    assert levels[0] == 1
    assert not [pair for pair in pairwise(levels) if pair[1] > pair[0] + 1]


@pages
def test_configurations_are_valid(page: Path, tmp_path: Path) -> None:
    if page.name == "extending.md":
        pytest.skip("its settings are those of packages that are not installed")
    for text in map(dedent, YAML.findall(page.read_text(encoding="utf-8"))):
        block = yaml.safe_load(text)
        if isinstance(block, dict) and "deployments" in block and "gpus" not in block:
            (tmp_path / "fleet.yaml").write_text(text)
            load_fleet(tmp_path / "fleet.yaml")
        elif isinstance(block, dict) and block.keys() & HeadwayConfig.model_fields.keys():
            HeadwayConfig.model_validate(block)


def test_the_configuration_of_the_kubernetes_example_is_valid() -> None:
    text = (ROOT / "examples" / "kubernetes" / "attach.yaml").read_text(encoding="utf-8")
    maps = [each["data"] for each in yaml.safe_load_all(text) if each["kind"] == "ConfigMap"]
    found = HeadwayConfig.model_validate(yaml.safe_load(maps[0]["headway.yaml"]))
    assert found.planner.dry_run
    assert resolve_profile(found.engine.profile).is_dir()


def test_every_page_is_reachable_from_the_index() -> None:
    reached: set[Path] = set()
    left = [INDEX]
    while left:
        page = left.pop()
        if page not in reached and page in DOCS:
            reached.add(page)
            left += [target for target, _ in links(page)]
    assert not set(DOCS) - reached


@current
def test_files_and_modules_that_are_named_exist(page: Path) -> None:
    names = {name.split()[0].rstrip(",") for name in BACKTICKED.findall(prose(page)) if name.strip()}
    gone = {
        name
        for name in names
        if (PATH.fullmatch(name) and not (ROOT / name).exists())
        or (FILE.fullmatch(name) and name not in FILES)
        or (
            MODULE.fullmatch(name)
            and not EXTENSION_POINTS.fullmatch(name)
            and f'"{name}"' not in SPANS
            and not is_defined(name)
        )
    }
    assert not gone


def test_the_site_names_every_page_once() -> None:
    groups = navigation()
    named = [ROOT / page for pages in groups.values() for page in pages]
    assert all(groups.values())
    assert sorted(page for page in named if page in DOCS) == [page for page in DOCS if page != INDEX]
    assert len(set(named)) == len(named)


def test_the_page_for_machines_has_the_form_of_llms_txt_and_every_page() -> None:
    text = MACHINES.read_text(encoding="utf-8")
    assert re.match(r"# \w+\n\n> ", text)
    listed = re.findall(r"^- \[[^\]]+\]\((\S+)\): \S", text, re.MULTILINE)
    assert len(listed) == len(LINK.findall(text))
    missing = [page for pages in navigation().values() for page in pages if page not in listed]
    assert not missing
    # The site has these files beside its pages, and no other.
    assert {Path(page).suffix for page in listed} == {".md"}


def test_clients_are_those_that_the_tests_install() -> None:
    text = (ROOT / "docs/reference/clients.md").read_text(encoding="utf-8")
    said = re.findall(r"^\| ([\w-]+) \| ([\d.]+) \|", text, re.MULTILINE)
    files = [ROOT / "constraints.txt", *(ROOT / "tests/clients").glob("*.txt")]
    pins = "\n".join(file.read_text(encoding="utf-8") for file in files).splitlines()
    assert len(said) == 10
    assert not [f"{name}=={version}" for name, version in said if f"{name}=={version}" not in pins]


def navigation() -> dict[str, list[str]]:
    """The groups of the site's navigation, each with its pages."""
    return runpy.run_path(str(ROOT / "docs" / "conf.py"))["navigation"](INDEX.read_text(encoding="utf-8"))


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
