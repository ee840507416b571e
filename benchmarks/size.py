"""How large the code base is, and how many files one planner tick and one routed request cross.

    python -m benchmarks size [--root CHECKOUT] [--journeys]

Counted are the packages without tests and benchmarks, as git tracks them in CHECKOUT (this one by default).
Import circles are strongly connected components of the import graph; imports for type checkers count.
Journeys: see `benchmarks.journeys`.
"""

import ast
import subprocess
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

PROJECT = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = tuple(sorted(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]))
SMALL_LINES, LONG_LINES = 50, 30
NAMES_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One module: its package, its tree, its lines of code and its lines with a comment."""

    path: str
    module: str
    tree: ast.Module
    lines: int
    comment_lines: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The figures of one checkout. `circles` are groups of modules that import each other."""

    lines: Mapping[str, int]
    files: Mapping[str, int]
    small_files: Sequence[str]
    circles: Sequence[Sequence[str]]
    repeated_classes: Sequence[str]
    long_functions: Sequence[str]
    comment_lines: int


def main(data: Path | None = None, *, root: Path | None = None, journeys: bool = False) -> int:
    """Print the figures; 0."""
    checkout = (root or Path()).resolve()
    size = measure(checkout)
    print(f"{'package':14}{'files':>7}{'lines':>9}")
    for package in PACKAGES:
        print(f"{package:14}{size.files[package]:7}{size.lines[package]:9,}")
    total = sum(size.lines.values())
    print(f"{'all':14}{sum(size.files.values()):7}{total:9,}\n")
    print(f"files under {SMALL_LINES} lines          {len(size.small_files):5}")
    print(f"comment lines                  {size.comment_lines:5}  ({size.comment_lines / total:.2%})")
    _listed("import circles", [" <-> ".join(circle) for circle in size.circles])
    _listed("class names repeated in a package", size.repeated_classes)
    _listed(f"functions over {LONG_LINES} lines", size.long_functions)
    if journeys:
        from benchmarks.journeys import print_journeys

        print_journeys(checkout)
    return 0


def measure(checkout: Path) -> Size:
    """The figures of the checkout in that directory. SyntaxError for a file that does not parse."""
    files = list(_sources(checkout))
    lines, counts = dict.fromkeys(PACKAGES, 0), dict.fromkeys(PACKAGES, 0)
    for each in files:
        lines[each.path.split("/")[0]] += each.lines
        counts[each.path.split("/")[0]] += 1
    return Size(
        lines=lines,
        files=counts,
        small_files=[each.path for each in files if each.lines < SMALL_LINES],
        circles=_circles(files),
        repeated_classes=_repeated_classes(files),
        long_functions=_long_functions(files),
        comment_lines=sum(each.comment_lines for each in files),
    )


def _sources(checkout: Path) -> Iterator[SourceFile]:
    listed = subprocess.run(
        ["git", "-C", str(checkout), "ls-files", *(f"{package}/*.py" for package in PACKAGES)],
        check=True,
        capture_output=True,
        text=True,
    )
    for path in listed.stdout.split():
        file = checkout / path
        text = file.read_text(encoding="utf-8")
        with file.open("rb") as stream:
            comments = sum(map(_is_comment, tokenize.tokenize(stream.readline)))
        yield SourceFile(
            path=path,
            module=path.removesuffix(".py").removesuffix("/__init__").replace("/", "."),
            tree=ast.parse(text, path),
            lines=text.count("\n"),
            comment_lines=comments,
        )


def _is_comment(token: tokenize.TokenInfo) -> bool:
    """Whether the token is a comment for people; marks for ruff and mypy are not."""
    return token.type == tokenize.COMMENT and not token.string.startswith(("# noqa", "# type:"))


def _circles(files: Sequence[SourceFile]) -> list[list[str]]:
    """Groups of at least two modules that reach each other by imports, the largest first."""
    number = {each.module: index for index, each in enumerate(files)}
    edges = [
        (number[each.module], number[name])
        for each in files
        for name in _imported(each)
        if name in number and name != each.module
    ]
    rows, columns = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    graph = coo_array((np.ones(len(rows)), (rows, columns)), shape=(len(files), len(files)))
    _, labels = connected_components(graph, directed=True, connection="strong")
    groups = defaultdict(list)
    for each, label in zip(files, labels, strict=True):
        groups[label].append(each.module)
    return sorted((group for group in groups.values() if len(group) > 1), key=len, reverse=True)


def _imported(file: SourceFile) -> Iterator[str]:
    """Modules that the file names in imports; `from package import name` may name a module of the package."""
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from modules
            yield node.module


def _repeated_classes(files: Sequence[SourceFile]) -> list[str]:
    places = defaultdict(list)
    for each in files:
        for node in ast.walk(each.tree):
            if isinstance(node, ast.ClassDef):
                places[each.path.split("/")[0], node.name].append(each.module)
    return sorted(f"{name}: {', '.join(where)}" for (_, name), where in places.items() if len(where) > 1)


def _long_functions(files: Sequence[SourceFile]) -> list[str]:
    found = []
    for each in files:
        for node in ast.walk(each.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > LONG_LINES:
                    found.append(f"{each.path}:{node.name} {lines}")
    return found


def _listed(what: str, entries: Sequence[str]) -> None:
    print(f"{what:30} {len(entries):5}")
    for entry in entries[:NAMES_SHOWN]:
        print(f"    {entry[:150]}")
    if len(entries) > NAMES_SHOWN:
        print(f"    and {len(entries) - NAMES_SHOWN} more")
