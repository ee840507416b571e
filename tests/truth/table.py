"""The table of all fleets: python -m tests.truth.table (needs prometheus on the PATH)."""

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from actors.collector.interval import HealthStatus, Measured
from tests.prometheus_process import PrometheusProcess
from tests.truth.reading import read_engines, read_prometheus, write_blocks
from tests.truth.test_truth import BEGIN_S, BORDERS_S, CASES, UNTIL_S, Case, told

CAUSE = 110
"""Characters of a cause that are shown."""


def shown(case: Case, measured: Sequence[Measured]) -> str:
    """Requests seen of those that came while health was ok, and what health said most of the other times."""
    truths = [case.truth(each.start_s - BEGIN_S, each.end_s - BEGIN_S) for each in measured]
    ok = [each.health.status is HealthStatus.OK for each in measured]
    known = [(each.requests, truth) for each, truth, good in zip(measured, truths, ok, strict=True) if good]
    off = max((abs(seen - truth) / truth for seen, truth in known if truth), default=0.0)
    causes = [f"{each.health.status}: {each.health.detail}" for each in measured if each.health.detail]
    parts = [f"none of {len(measured)} ok"]
    if known:
        seen, truth = map(sum, zip(*known, strict=True))
        parts = [
            f"{seen:.0f} of {truth:.0f} in {len(known)} of {len(measured)}, at most {100.0 * off:.1f} % off"
        ]
    if causes and len(known) < len(measured):
        parts.append(max(causes, key=causes.count)[:CAUSE])
    return "; ".join(parts) + ("" if not told(case, measured) else " (WRONG)")


def main() -> None:
    """Print it."""
    sys.stdout.write("| pages | read by ourselves | by a Prometheus |\n|---|---|---|\n")
    asked = [f"c{number}" if "prometheus" in case.ways else "" for number, case in enumerate(CASES)]
    with TemporaryDirectory() as directory:
        blocks = {name: (case.targets, UNTIL_S) for name, case in zip(asked, CASES, strict=True) if name}
        write_blocks(Path(directory), blocks)
        server = PrometheusProcess(Path(directory), retention="100y")
        try:
            for name, case in zip(asked, CASES, strict=True):
                own = theirs = "–"
                if "engines" in case.ways:
                    own = shown(case, read_engines(case.engines, case.preset, BORDERS_S, **case.settings)[0])
                if name:
                    given = (server.url, name, case.preset, BORDERS_S, case.late_s)
                    theirs = shown(case, read_prometheus(*given, **case.settings))
                sys.stdout.write(f"| {case.name} | {own} | {theirs} |\n")
        finally:
            server.stop()


if __name__ == "__main__":
    main()
