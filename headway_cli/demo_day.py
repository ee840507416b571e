"""`headway demo --simulate`: a day of load that the project makes, simulated on an embedded profile.

Three hours stand for a day: a sine from trough to crest and back, and a burst of requests every 40 minutes.
"""

import tempfile
from pathlib import Path

PROFILE = "llama-3.1-8b_h100_tp1"
SHAPES = (
    "diurnal:rate_rps=45,amplitude=0.75,period_s=10800,duration_s=10800,"
    "input_tokens=1400,output_tokens=260,input_cv=0.8,output_cv=0.6,seed=1",
    "burst:rate_rps=0,peak_rps=40,burst_s=300,every_s=2400,duration_s=10800,"
    "input_tokens=500,output_tokens=120,seed=2",
)
SETTINGS = {
    "engine.profile": PROFILE,
    "slo.ttft_ms": 500.0,
    "slo.itl_ms": 25.0,
}


def simulate_day(output: str) -> None:
    """Simulate the day, write the report and print the result."""
    from headway.config import load_config
    from headway_cli.job import Job, execute
    from headway_cli.output import write_text
    from headway_cli.page import render
    from headway_cli.progress import announce_compilation, bar
    from headway_cli.tables import console, print_result

    announce_compilation()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "made-up-day.csv")
        _write_day(trace)
        with bar("simulating") as progress:
            document = execute(Job(trace=str(trace), config=load_config(None, SETTINGS)), progress)
    write_text(Path(output), render(document))
    print_result(document, console())
    print(f"\nThe report: {output}")


def _write_day(path: Path) -> None:
    """Both shapes in one trace, in the order of arrival."""

    from headway.workload import open_trace

    rows: list[tuple[float, int, int]] = []
    for shape in SHAPES:
        with open_trace(shape) as trace:
            for chunk in trace.chunks():
                columns = (chunk.arrival_s, chunk.input_tokens, chunk.output_tokens)
                rows += zip(*(column.tolist() for column in columns), strict=True)
    rows.sort()
    lines = [f"{time!r},{tokens_in},{tokens_out}\n" for time, tokens_in, tokens_out in rows]
    path.write_text("timestamp_s,input_tokens,output_tokens\n" + "".join(lines), encoding="ascii")
