"""Planner policies at equal attainment: GPU-hours at 99 % of what is attainable, over a grid of deployments.

    python -m benchmarks policies --data DIR [--cells 'azure10_8b_*,r1_*'] [--quick] [--output DIR]
                                  [--workers N] [--report]

Each policy has one safety setting, which is swept to the cheapest run that holds 99 %: cell by cell, and for
all cells at once. Compared are `headway`, `reference` (the better of two intervals), `threshold` (default and
tuned), the best fixed fleet in hindsight, and the fluid bound. Results lie in the output directory as they
come, and no run is made twice; remove a policy's folder there to measure it anew. `report.md` is written at
the end; `--report` writes it from what lies there, run to the end or not.
"""

import os
from pathlib import Path

OUTPUT = Path("out/policies")


def main(
    data: Path,
    *,
    cells: str = "*",
    quick: bool = False,
    output: Path = OUTPUT,
    workers: int | None = None,
    report: bool = False,
) -> int:
    """Run what is missing, print the report."""
    from benchmarks.policies.cells import cells as matching
    from benchmarks.policies.contenders import CONTENDERS
    from benchmarks.policies.grid import run_grid
    from benchmarks.policies.jobs import Place
    from benchmarks.policies.report import markdown
    from benchmarks.policies.results import gathered

    chosen = matching(cells, quick=quick)
    if not chosen:
        print(f"no cell is called {cells!r}")
        return 1
    place = Place(data=data.resolve(), output=output)
    if not report:
        _compile()
        run_grid(place, chosen, CONTENDERS, workers or os.cpu_count() or 1)
    output.mkdir(parents=True, exist_ok=True)
    text = markdown(gathered(place, chosen, CONTENDERS))
    (output / "report.md").write_text(text)
    print(text)
    return 0


def _compile() -> None:
    """What is not in the cache, so that the processes do not each do it."""
    from headway.config import load_config
    from headway_cli.job import Job, execute

    config = load_config(None, {"planner.policy": "static"})
    execute(Job(trace="steady:rate_rps=1,duration_s=10", config=config))
