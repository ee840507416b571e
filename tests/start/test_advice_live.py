"""The README's third result: the command as printed, and what it prints beside it."""

import re
from pathlib import Path

from tests.start.printed import commands
from tests.start.terminal import Terminal, below


def test_savings_that_can_be_checked_before_it_acts(tmp_path: Path) -> None:
    """Two live fleets on a machine that may be busy: that it runs and compares them, not what it finds."""
    (command,) = commands("README.md", 5)
    with below(tmp_path) as folder, Terminal(folder) as terminal:
        terminal.type(". .venv/bin/activate")
        printed = terminal.type(command)
    assert re.search(r"saved: forecast \d+\.\d%, made \d+\.\d%", printed), printed
