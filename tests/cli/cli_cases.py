"""Inputs for the tests of the command: small traces, broken profiles, and the command in this process."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.config import resolve_profile
from headway_cli.app import run

LOAD = "steady:rate_rps=4,duration_s=300,input_tokens=600,output_tokens=60,seed=3"
PROFILE = "llama-3.1-8b_h100_tp1"
HEADER = "timestamp_s,input_tokens,output_tokens"
DECODE = Path("selected_decode_interpolation", "raw_data.npz")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    def complaint(self) -> str:
        """The one line on standard error of a command that refused its input."""
        assert self.code == 2, self
        assert self.err.startswith("headway: ")
        assert self.err.count("\n") == 1
        assert "Traceback" not in self.err + self.out
        return self.err.removeprefix("headway: ").rstrip()


def headway(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Ended:
    """Run a command."""
    code = run([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return Ended(code=code, out=captured.out, err=captured.err)


def trace(folder: Path, *rows: str, header: str = HEADER) -> Path:
    """A trace file."""
    path = folder / "trace.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def profile_copy(folder: Path) -> Path:
    """A copy of an embedded profile, to be broken."""
    return Path(shutil.copytree(resolve_profile(PROFILE), folder / "profile"))


def rewrite(table: Path, *, drop: str) -> None:
    """Drop an array of an npz file."""
    with np.load(table) as arrays:
        kept = {name: arrays[name] for name in arrays if name != drop}
    np.savez(table, **kept)


@contextmanager
def in_this_process(_count: int) -> Iterator[ThreadPoolExecutor]:
    """In the place of `headway_cli.job.workers`: a process of its own would import all once more."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


def put(document: Any, value: object, *way: str | int) -> Any:
    """The document with another value at a place."""
    node = document
    for step in way[:-1]:
        node = node[step]
    node[way[-1]] = value
    return document


def zeros(node: Any) -> Any:
    """The same shape, all of whose figures are 0."""
    if isinstance(node, dict):
        return {key: zeros(value) for key, value in node.items()}
    if isinstance(node, list):
        return [zeros(value) for value in node]
    return type(node)(0) if isinstance(node, int | float) and not isinstance(node, bool) else node


def figures(node: Any, *way: str | int) -> Iterator[tuple[str | int, ...]]:
    """The places of all figures."""
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from figures(value, *way, key)
    elif isinstance(node, float):
        yield way
