"""Generated loads → what `headway simulate` writes with the default policy and the default router.

Each part of the document has a digest of its figures to six digits, so that the machine does not matter.
Sentences (`WORDS`) are left out: rewording them changes no figure. If a change is meant, this module, run as
a script, writes the file anew: `python -m tests.golden.test_simulations`.
"""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from headway_cli.app import run
from tests.golden.conversations import six

GOLDEN = Path(__file__).with_name("simulations.json")
LENGTHS = "input_tokens=900,output_tokens=120,input_cv=0.8,output_cv=0.6"
RUNS: dict[str, tuple[str, ...]] = {
    "waves, split": (f"diurnal:rate_rps=10,amplitude=0.7,period_s=300,duration_s=400,{LENGTHS},seed=3",),
    "step, mixed": (
        f"step:rate_rps=4,peak_rps=20,at_s=120,back_at_s=240,duration_s=400,{LENGTHS},seed=5",
        "--aggregated",
    ),
    "bursts, mixed": (
        f"onoff:rate_rps=2,peak_rps=25,on_s=15,every_s=90,duration_s=400,{LENGTHS},seed=7",
        "--aggregated",
        "--start-up-delay",
        "20",
    ),
}
"""A load and flags."""
SLOW = ("--prefill-speed", "0.25", "--decode-speed", "0.3")
"""Engines far from their profile: several replicas for few requests, and corrections of the plan."""
OF_ALL = ("--routing", "slo", "--ttft-ms", "1500", "--itl-ms", "50", "--max-replicas", "8", *SLOW, "--json")
OF_A_RUN = {"wall_s"}
"""Keys that are another run's."""
WORDS = {"notes", "summary", "warnings"}
"""Keys of sentences."""


def document(name: str, folder: Path) -> dict[str, Any]:
    """What it writes."""
    path = folder / "result.json"
    assert run(["simulate", *RUNS[name], *OF_ALL, str(path)]) == 0
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def rounded(value: Any) -> Any:
    """The same with six digits, without sentences."""
    if isinstance(value, float):
        return six(value)
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items() if key not in WORDS}
    return [rounded(each) for each in value] if isinstance(value, list) else value


def digests(name: str, folder: Path) -> dict[str, str]:
    """A digest of each part; parts that are one figure as they are."""
    found = {}
    for key, part in document(name, folder).items():
        if key not in OF_A_RUN | WORDS:
            text = json.dumps(rounded(part))
            found[key] = text if len(text) < 40 else sha256(text.encode()).hexdigest()[:16]
    return found


@pytest.mark.parametrize("name", RUNS)
def test_results_are_those_of_the_golden_file(name: str, tmp_path: Path) -> None:
    assert digests(name, tmp_path) == json.loads(GOLDEN.read_text(encoding="utf-8"))[name]


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        made = {name: digests(name, Path(folder)) for name in RUNS}
    GOLDEN.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
