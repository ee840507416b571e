"""docs/start/demo.md and the README's first block: from a clone to a decision that a reader understands."""

from pathlib import Path

from tests.start.printed import DEMO, ROOT, commands
from tests.start.terminal import Terminal, set_up


def test_from_a_clone_to_a_decision(tmp_path: Path) -> None:
    cloned, made = commands(DEMO, 1)
    assert made.split("#")[0].split() == commands("README.md", 1)[0].split("#")[0].split() == ["make", "demo"]
    exported, decisions, page = commands(DEMO, 2)
    folder = tmp_path / "headway"
    with Terminal(tmp_path) as first:
        first.type(cloned.replace("URL", str(ROOT)))
        set_up(folder)
        first.begin(f"{made}\necho ended $?")
        address = first.shows(r"http://127\.0\.0\.1:\d+")[0]
        with Terminal(folder) as second:
            second.type(exported.replace("http://127.0.0.1:PORT", address))
            second.until(decisions, lambda printed: "prefill" in printed)
            second.type(page)
            assert second.browsed.read_text(encoding="utf-8").startswith(address)
        assert first.shows(r"ended (\d+)")[1] == "0"
    assert (folder / "out" / "demo.html").stat().st_size > 10_000
