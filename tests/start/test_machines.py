"""docs/start/machines.md with its two stand-ins, and the README's block that attaches."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.start.printed import FENCED, MACHINES, ROOT, blocks, commands
from tests.start.terminal import Terminal, below

INLINE = re.compile(r"`([^`]+)`")


@contextmanager
def prepared(parent: Path) -> Iterator[Path]:
    """A clone with the page's headway.yaml, and its two stand-ins under the page's load."""
    text = FENCED.sub("", (ROOT / MACHINES).read_text(encoding="utf-8"))
    shown = [each.replace("\n", " ") for each in INLINE.findall(text)]
    (server,) = (each for each in shown if each.startswith("python -m tests.vllm_double"))
    (load,) = (each for each in shown if each.startswith("while "))
    with below(parent) as folder, Terminal(folder) as beside:
        (folder / "headway.yaml").write_text(blocks(MACHINES, "yaml")[0], encoding="utf-8")
        beside.type(". .venv/bin/activate")
        for port in ("18101", "18102"):
            beside.type(server.replace("18101", port))
            beside.until(f"curl -sf 127.0.0.1:{port}/metrics", lambda printed: "vllm:" in printed)
        beside.begin(load)
        yield folder


def last(printed: str) -> dict[str, Any]:
    """The JSON below what curl says of its progress."""
    document: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
    return document


def test_watch_then_act(tmp_path: Path) -> None:
    check, attach, export, status, decisions, page, advise = commands(MACHINES, 1)
    act, report, following, complete, down = commands(MACHINES, 2)
    with prepared(tmp_path) as folder, Terminal(folder) as terminal:
        terminal.type(". .venv/bin/activate")
        terminal.type(check)
        terminal.type(attach)
        try:
            terminal.type(export)
            terminal.type(status)
            terminal.until(decisions, lambda printed: "mixed" in printed)
            terminal.type(page)
            assert terminal.browsed.read_text(encoding="utf-8").startswith("http://127.0.0.1:8100")
            terminal.until(advise, lambda printed: "GPU-hours" in printed)
            terminal.type(act)
            terminal.type(report)
            decision = last(terminal.type(following))
            assert decision["decision_id"] == 0
            assert decision["targets"]["mixed"] >= 1
            assert last(terminal.type(complete)) == {"decision_id": 0, "counted": True}
        finally:
            terminal.type(down)
        terminal.type("curl -sf 127.0.0.1:18101/metrics")


def test_the_front_page_attaches_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    setup, activate, attach = commands("README.md", 2)
    with prepared(tmp_path) as folder, Terminal(folder) as terminal:
        terminal.type(setup)
        terminal.type(activate)
        terminal.begin(f"{attach}\necho ended $?")
        terminal.shows(r"http://127\.0\.0\.1:8100")
        terminal.interrupt()
        assert terminal.shows(r"ended (\d+)")[1] == "0"
