"""The commands of the README and of docs/start, as they are printed there.

A block is a fenced one without a language; blocks count from 1 on each page. SHOWN has each block with the
test that runs it, or why none can; tests/test_printed_commands.py holds it against the pages.
"""

import re
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)

DEMO, MACHINES = "docs/start/demo.md", "docs/start/machines.md"
KUBERNETES, RAY = "docs/start/kubernetes.md", "docs/start/ray.md"
PAGES = ("README.md", DEMO, MACHINES, KUBERNETES, RAY)

SHOWN = {
    ("README.md", 1): "start/test_demo.py",
    ("README.md", 2): "start/test_machines.py",
    ("README.md", 3): "test_readme_results.py",
    ("README.md", 4): "test_readme_results.py",
    ("README.md", 5): "start/test_advice_live.py",
    (DEMO, 1): "start/test_demo.py",
    (DEMO, 2): "start/test_demo.py",
    (MACHINES, 1): "start/test_machines.py",
    (MACHINES, 2): "start/test_machines.py",
    (KUBERNETES, 1): "kube/test_start.py",
    (KUBERNETES, 2): "kube/test_start.py",
    (RAY, 1): "needs an application of ray.serve.llm; its verbs are those of docs/start/machines.md",
    (RAY, 2): "needs GPUs",
}


def blocks(page: str, language: str = "") -> list[str]:
    """The fenced blocks of a page, in order, without their indentation."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [dedent(body) for _, found, body in FENCED.findall(text) if found == language]


def commands(page: str, number: int) -> list[str]:
    """The command lines of a block, continued ones joined; comments stay, for a shell ignores them."""
    joined = blocks(page)[number - 1].replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.strip()]
