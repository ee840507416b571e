"""The README's first two results: each command as printed, and what it prints beside it."""

import re
from pathlib import Path

from tests.start.printed import ROOT, commands
from tests.start.terminal import Terminal, below

README = (ROOT / "README.md").read_text(encoding="utf-8")


def rows(heading: str) -> dict[str, list[str]]:
    """The cells of the first table below those words, by the first word of each row."""
    table = README[README.index(heading) :].split("\n\n")[1]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {cells[0]: cells[1:] for cells in lines}


def test_fewer_gpus_for_the_same_promise(tmp_path: Path) -> None:
    """The command has the seed 1: the first figure of each cell."""
    (command,) = commands("README.md", 3)
    with below(tmp_path) as folder, Terminal(folder) as terminal:
        terminal.type(". .venv/bin/activate")
        printed = terminal.type(command)
        assert (folder / "out.html").stat().st_size > 10_000
    names = {
        "`headway`": "headway",
        "the best": "static:auto",
        "`threshold`": "threshold",
        "`reference`": "reference",
    }
    for row, (attained, hours) in rows("**Fewer GPUs").items():
        policy = next(name for begin, name in names.items() if row.startswith(begin))
        line = next(each for each in printed.splitlines() if policy in each.split())
        shown = {round(float(figure), 1) for figure in re.findall(r"\d+\.\d+", line)}
        assert {float(attained.split(",")[0].rstrip(" %")), float(hours.split(",")[0])} <= shown, line


def test_each_request_by_its_own_slo(tmp_path: Path) -> None:
    (command,) = commands("README.md", 4)
    claimed = README[README.index("**Each request by its own SLO.**") :].split("\n\n")[0].replace("\n", " ")
    least_load, slo = re.findall(r"(\d+\.\d ± \d\.\d) %", claimed)
    (gain,) = re.findall(r"by (\d+) %", claimed)
    with below(tmp_path) as folder, Terminal(folder) as terminal:
        terminal.type(". .venv/bin/activate")
        printed = terminal.type(command).splitlines()
    at_90 = [line.replace(" %", "") for line in printed if line.lstrip().startswith(("90 %", "slo "))]
    assert least_load in next(line for line in at_90 if "least_load" in line)
    assert slo in next(line for line in at_90 if line.split()[0] == "slo")
    gained = next(line for line in printed if re.match(r" *90 % +least_load +\+", line))
    assert round(float(re.findall(r"\+(\d+\.\d) %", gained)[0])) == int(gain)
