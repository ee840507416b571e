"""The tests nearest to what changed, as many as fit `make test-fast`.

    python -m tests.nearest [--since REVISION] [pytest's options]

Changes are those since REVISION; without one the uncommitted ones, or the last commit's where there are none.
The distance of a test module to a change is the number of imports between them. Modules that are named for
what changed come first, then those in the folder of that name, then all others by distance; of equal ones the
cheapest. Imports cannot tell what reads a page, a script or a shipped file: the modules that name it do.
A module's cost is that of `tests/costs.json`; modules that do not fit the rest of the time are left out.
"""

import argparse
import ast
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import grimp

from tests.packages import PACKAGES, ROOT
from tests.stages import FOLDERS, FOUR, PYTEST

TESTS = ROOT / "tests"
SOURCES = (*PACKAGES, "benchmarks")
FOLDER_OF = {"headway_aibrix": "aibrix", "headway_cli": "cli", "headway_studies": "studies"}
"""Folders of tests that are not called as the package."""

WITHIN_S, COLLECTED_S, LAST_S, ENDED_S = 80.0, 15.0, 76.0, 87.0
"""When it is to end, what of that goes into starting and collecting, when the last test may begin (on a busy
machine fewer are reached), and when what still runs is ended: 90 s with make."""

TOGETHER = 2.2
"""Seconds of tests, by the table, that the processes get done in a second on two quiet cores."""

UNKNOWN_S = 2.0
"""The cost of a module that is not in the table."""

FAR = 1000
"""The distance of what no import connects."""


def changed(since: str | None) -> list[str]:
    """Paths from the root that differ from `since`, new ones too."""

    def git(*words: str) -> list[str]:
        shown = subprocess.run(["git", *words], cwd=ROOT, check=False, capture_output=True, text=True)
        if shown.returncode and since:
            sys.exit(f"--since {since}: {shown.stderr.strip()}")
        return [line for line in shown.stdout.splitlines() if line]

    new = git("ls-files", "--others", "--exclude-standard")
    return sorted({*git("diff", "--name-only", since or "HEAD"), *new}) or git(
        "diff", "--name-only", "HEAD~1"
    )


def name_of(path: str) -> str:
    """The module of a Python file: `headway/routing/__init__.py` is `headway.routing`."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


class Imports:
    """Which module imports which, tests included, and what files each names."""

    def __init__(self) -> None:
        graph = grimp.build_graph(*SOURCES, cache_dir=None)
        self.importers = {name: set(graph.find_modules_that_directly_import(name)) for name in graph.modules}
        self.texts = {
            name_of(str(path.relative_to(ROOT))): path.read_text(encoding="utf-8")
            for folder in (*SOURCES, "tests")
            for path in (ROOT / folder).rglob("*.py")
        }
        for name, text in self.texts.items():
            if name.startswith("tests."):
                for imported in self._imported_by(name, text):
                    self.importers.setdefault(imported, set()).add(name)

    def _imported_by(self, name: str, text: str) -> Iterator[str]:
        """Modules of ours that a test module imports; those of its own folder by their bare names, too."""
        beside = name.rpartition(".")[0]
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                wanted = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                wanted = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            else:
                continue
            yield from (
                found for each in wanted for found in (each, f"{beside}.{each}") if found in self.texts
            )

    def naming(self, path: str) -> set[str]:
        """Modules that read a file that is not Python: they name it, or the top folder that it lies in."""
        words = {Path(path).name} | ({f'"{Path(path).parts[0]}"'} if "/" in path else set())
        found = {name for name, text in self.texts.items() if any(word in text for word in words)}
        # Product code names its own files; a folder's name alone says nothing there.
        return {name for name in found if name.startswith("tests.") or Path(path).name in self.texts[name]}

    def distances(self, files: Iterable[str]) -> Mapping[str, int]:
        """The distance to the nearest of the changed files, by module."""
        files = list(files)
        start = {name_of(path) for path in files if path.endswith(".py")}
        reached = dict.fromkeys(start, 0)
        for path in files:
            if not path.endswith(".py"):
                reached |= {name: 1 for name in self.naming(path) if name not in reached}
        layer = list(reached)
        for name in layer:  # grows as it goes: the nearest first
            for importer in sorted(self.importers.get(name, ())):
                if importer not in reached:
                    reached[importer] = reached[name] + 1
                    layer.append(importer)
        return reached


@cache
def imports() -> Imports:
    """Of this checkout as it is when first asked for."""
    return Imports()


def modules() -> list[str]:
    """All test modules that no stage of its own runs, as paths from the root."""
    paths = (str(path.relative_to(ROOT)) for path in sorted(TESTS.rglob("test_*.py")))
    return [path for path in paths if path.split("/")[1] not in FOLDERS]


def by_nearness(files: Iterable[str], costs: Mapping[str, float]) -> list[str]:
    """All of `modules`, those first whose answer a change of `files` asks for."""
    files = list(files)
    reached = imports().distances(files)
    parts = [[FOLDER_OF.get(part, part) for part in Path(path).with_suffix("").parts] for path in files]
    stems = {each[-1] for each in parts}
    folders = {part for each in parts for part in each[:-1]} - {"tests"}

    def key(path: str) -> tuple[bool, bool, bool, int, float]:
        stem = Path(path).stem.removeprefix("test_")
        named = any(each in (stem, f"{stem}s", Path(path).stem) for each in stems)
        named = named or any(stem.startswith(f"{each}_") for each in stems)
        return (
            path not in files,
            not named,
            folders.isdisjoint(Path(path).parts[1:-1]),
            reached.get(name_of(path), FAR),
            costs.get(path, UNKNOWN_S),
        )

    return sorted(modules(), key=key)


def fitting(ordered: Iterable[str], costs: Mapping[str, float], budget_s: float) -> list[str]:
    """In that order what fits."""
    chosen, left_s = [], budget_s
    for path in ordered:
        cost_s = costs.get(path, UNKNOWN_S)
        if cost_s <= left_s:
            chosen.append(path)
            left_s -= cost_s
    return chosen


def main() -> int:
    """Choose and run them; pytest's exit code. What has to be compiled first leaves less time for tests."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--since", help="the revision that the working copy is compared with")
    parser.add_argument("--list", action="store_true", help="print the modules and run nothing")
    chosen, options = parser.parse_known_args()
    began_s = time.monotonic()
    subprocess.run(["make", "--silent", "compiled"], cwd=ROOT, check=True)
    files = changed(chosen.since)
    costs: dict[str, float] = json.loads((TESTS / "costs.json").read_text(encoding="utf-8"))
    ordered = by_nearness(files, costs)
    left_s = WITHIN_S - COLLECTED_S - (time.monotonic() - began_s)
    fit = fitting(ordered, costs, TOGETHER * left_s)
    print(f"changed: {', '.join(files[:6]) or 'nothing'}{' ...' if len(files) > 6 else ''}")
    print(
        f"{len(fit)} of {len(ordered)} test modules, the nearest first: {' '.join(fit[:4])} ...", flush=True
    )
    if elsewhere := {path.split("/")[1] for path in files if path.startswith("tests/")} & set(FOLDERS):
        print(f"not run here: {', '.join(f'make test-{folder}' for folder in sorted(elsewhere))}", flush=True)
    if chosen.list:
        print("\n".join(fit))
        return 0
    until = f"--until={time.time() + LAST_S - (time.monotonic() - began_s)}"
    command = [*PYTEST, *FOUR, until, "-rs", "--max-worker-restart=0", "-m", "not slow", *options, *fit]
    return ended(command, ENDED_S - (time.monotonic() - began_s))


def ended(command: Sequence[str], within_s: float) -> int:
    """pytest's exit code. A test that still runs then is killed, and named: what hangs gives no answer."""
    with subprocess.Popen(command, cwd=ROOT) as running:
        try:
            return running.wait(within_s)
        except subprocess.TimeoutExpired:
            print(f"\nnot done after {ENDED_S:g} s: what runs is ended, the rest is left out", flush=True)
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        # Repeatedly: a worker that starts only now would hang as well, with nothing left to end it.
        while running.poll() is None:
            with suppress(ProcessLookupError, FileNotFoundError):
                for worker in children.read_text().split():
                    os.kill(int(worker), signal.SIGKILL)
            time.sleep(0.5)
        return running.returncode


if __name__ == "__main__":
    sys.exit(main())
