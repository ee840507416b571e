"""The benchmark of routings: its cells are sound, its summary is right, and it runs from end to end."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import routings
from benchmarks.__main__ import main
from benchmarks.routings import GRID, chosen_cells
from benchmarks.routings_plot import plot
from benchmarks.routings_table import Row, changes, summary, table
from headway.config import load_config
from headway.workload.generators import parse_generator


def row(cell: str, routing: str, goodput_rps: float, tail_s: float = 1.0, hit_rate: float = 0.0) -> Row:
    """At 90 %."""
    return Row(
        cell=cell,
        load=0.9,
        routing=routing,
        goodput_rps=goodput_rps,
        sd_rps=0.1,
        attainment=0.5,
        shed_share=0.1,
        tail_s=tail_s,
        hit_rate=hit_rate,
    )


ROWS = [
    row("a", "slo", 9.0, tail_s=3.0, hit_rate=0.3),
    row("a", "default", 6.0, tail_s=1.0, hit_rate=0.1),
    row("a", "prefix", 10.0, tail_s=2.0, hit_rate=0.4),
    row("b", "slo", 5.0, tail_s=1.0),
    row("b", "default", 4.0, tail_s=1.0),
    row("b", "prefix", 5.05, tail_s=1.0),
]


def test_all_cells_are_deployments_and_loads() -> None:
    cells = list(chosen_cells("", has_data=True))
    assert len(cells) == 4 * len(GRID)
    for cell in cells:
        config = load_config(None, cell.settings(learn=False))
        assert bool(config.slo.classes) == (cell.promises == "classes")
        assert set(config.pools) == {part.partition("=")[0] for part in cell.fleet.split(",")}
        if cell.load.generated:
            parse_generator(f"{cell.load.source},duration_s={cell.load.duration_s}", seed=0)


def test_words_choose_cells() -> None:
    names = [cell.words for cell in chosen_cells("onoff+split,mooncake+mixed+plain", has_data=True)]
    assert names == [
        ("mooncake", "mixed", "plain"),
        ("onoff", "split", "classes"),
        ("onoff", "split", "plain"),
    ]
    without = {cell.name for cell in chosen_cells("", has_data=False)}
    assert without == {"onoff", "prefixes20", "agents"}


def test_the_summary_counts_and_names_the_worst() -> None:
    text = "\n".join(summary(ROWS, judged="slo"))
    assert "slo          best in 0, within 2 % in 1; median 0.945, worst 0.900 (a at 90%)" in text
    assert "prefix       best in 2, within 2 % in 2" in text
    assert "goodput over default's: below in 0; median 1.375, worst 1.250 (b at 90%)" in text
    assert "tail over default's: above 1.5 in 1; median 2.000, worst 3.000 (a at 90%)" in text
    assert "hits over prefix's: below 0.9 in 1 of 1; median 0.750, worst 0.750 (a at 90%)" in text


def test_old_and_new_lie_side_by_side() -> None:
    (_, _, *lines) = changes(ROWS[:1], [row("a", "slo", 9.9), row("a", "pull", 3.0)])
    (line,) = lines
    assert line.startswith("| a | 90% | slo | 9 → 9.9 | 1.100 | 50.0% → 50.0% |")
    assert len(list(table(ROWS))) == 2 + len(ROWS)


def test_the_plot_has_a_line_of_each_routing_in_each_panel() -> None:
    root = ElementTree.fromstring(plot(ROWS, ["one", "other"]))
    lines = root.findall("{*}polyline")
    assert len(lines) == len(ROWS)
    # The first routing is drawn last, on top, and more goodput is higher up.
    slo, default, prefix = lines[2], lines[1], lines[0]
    assert float(slo.get("stroke-width", "")) > float(default.get("stroke-width", ""))
    heights = [float(line.get("points", "").split(",")[1]) for line in (prefix, slo, default)]
    assert heights == sorted(heights)
    assert {"one", "other", "slo", "default", "prefix"} <= {each.text for each in root.findall("{*}text")}


@pytest.mark.slow
def test_a_cell_is_run_written_and_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process: the tests' own would have to compile once more."""

    def run(calls: list[object], **_: object) -> list[object]:
        return [call() for call in calls]  # type: ignore[operator]

    class Runner:
        def __init__(self, _count: int | None) -> None: ...

        def __enter__(self) -> object:
            return run

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(routings, "runner", Runner)
    place = tmp_path / "rows.json"
    asked = ["routings", "--only", "prefixes20+mixed+plain", "--duration", "20", "--seeds", "1"]
    asked += ["--routings", "slo,least_load", "--loads", "70"]
    assert main([*asked, "--json", str(place)]) == 0
    rows = json.loads(place.read_text(encoding="utf-8"))
    assert [(each["cell"], each["load"], each["routing"]) for each in rows] == [
        ("prefixes20/mixed/plain", 0.7, "slo"),
        ("prefixes20/mixed/plain", 0.7, "least_load"),
    ]
    assert rows[0]["hit_rate"] > rows[1]["hit_rate"] > 0.3
    assert rows[0]["goodput_rps"] > 0
    assert main([*asked, "--before", str(place)]) == 0
    out = capsys.readouterr().out
    assert "without --data DIR only generated loads run" in out
    assert f"| prefixes20/mixed/plain | 70% | slo | {rows[0]['goodput_rps']:.4g} → " in out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("routings", "--only", "azure+mixed"), "no cell has 'azure'; known: azure_conv, mooncake"),
        (("routings", "--only", "mixed+split"), "no cell has 'mixed+split' without --data"),
        (("routings", "--only", "onoff", "--routings", "sloo"), "no profile 'sloo'"),
        (("routing", "--only", "slow"), "no row has 'slow' in it"),
    ],
)
def test_what_cannot_run_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str
) -> None:
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
