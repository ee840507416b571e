"""How clients run, and what a run has to show: figures of the client's own report beside the gateway's."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from headway.config import HeadwayConfig
from headway.engine.rules import simulated_profile
from tests.gateway.serving import Running, until

ENVIRONMENTS = Path(__file__).parents[2] / ".cache/clients"
MODEL = "m"
SPEED = 0.125
"""A gap between tokens is so long then that what a busy machine adds is a small part of it."""

REQUESTS, INPUT_TOKENS, OUTPUT_TOKENS, STREAMS = 10, 60, 10, 2
ENDS_WITHIN_S = 240.0


class Figures(NamedTuple):
    """What a run was: counts, and mean times in seconds."""

    requests: int
    failed: int
    input_tokens: int
    output_tokens: int
    ttft_s: float
    itl_s: float


COUNTS = 4
"""So many of them are whole numbers, and the same on both sides."""


def program(client: str, name: str) -> str:
    """A program of that client's environment; without it the test is skipped by name, and in CI it fails."""
    found = ENVIRONMENTS / client / "bin" / name
    if not found.exists():
        text = f"{client} is not installed here: make test-clients"
        pytest.fail(text) if "CI" in os.environ else pytest.skip(text)
    return str(found)


def run(*command: str, cwd: Path, **environment: str) -> str:
    """What it prints. AssertionError, with all of it, where it fails. It asks no model hub."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("HEADWAY_", "OPENAI_"))}
    own |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(cwd / "hf"), "HOME": str(cwd), **environment}
    ended = subprocess.run(
        command,
        cwd=cwd,
        env=own,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=ENDS_WITHIN_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    sys.stdout.write(ended.stdout)
    return ended.stdout


def counted(gateway: Running) -> Figures:
    """What the gateway has counted and measured of what has ended."""
    metrics = gateway.app.state.metrics
    until(lambda: gateway.app.state.traffic.requests == 0)
    outcomes: Mapping[str, int] = metrics.requests
    return Figures(
        requests=outcomes["ok"],
        failed=sum(outcomes.values()) - outcomes["ok"],
        input_tokens=round(metrics.input_tokens.series["ok"].total),
        output_tokens=metrics.output_tokens,
        ttft_s=metrics.ttft.total / max(1, metrics.ttft.count),
        itl_s=metrics.itl.total / max(1, metrics.itl.count),
    )


def profiled_itl_s() -> float:
    """The gap between tokens of the simulated engine when it does little else."""
    config = HeadwayConfig.model_validate({"model": MODEL, "engine": {"time_scale": SPEED}})
    return float(simulated_profile(config).decode.itl_s(0.0, float(INPUT_TOKENS)))


def agree(theirs: Figures, gateway: Running) -> None:
    """All requests were answered in full, at the engine's speed, and both sides counted the same."""
    ours = counted(gateway)
    assert (theirs.requests, theirs.failed) == (REQUESTS, 0)
    assert theirs.output_tokens == REQUESTS * OUTPUT_TOKENS
    assert ours[:COUNTS] == theirs[:COUNTS]
    # Means over the same requests, the client's from further away.
    assert 0.5 < theirs.ttft_s / ours.ttft_s < 4.0
    assert 0.5 < theirs.itl_s / ours.itl_s < 2.0
    assert 0.5 < theirs.itl_s / profiled_itl_s() < 3.0
