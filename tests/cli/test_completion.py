"""Tab, as a real bash does it, and how the script gets there."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from cli_cases import headway

from headway_cli.app import VERBS
from headway_cli.completion import script

TAB = '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _headway; printf "%s\\n" "${COMPREPLY[@]}"'


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("completion") / "headway.bash"
    place.write_text(script("bash"), encoding="utf-8")
    return place


def tab(place: Path, *words: str) -> Sequence[str]:
    command = ["bash", "--norc", "-c", TAB, "bash", str(place), "headway", *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not ended.stderr
    return ended.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("stat",), ["status"]),
        (("--v",), ["--version"]),
        (("status", "--ch"), ["--check"]),
        (("profile", "imp"), ["import"]),
        (("profile", "import", "--over"), ["--overwrite"]),
        (("simulate", "trace.csv", "--pol"), ["--policy"]),
        (("simulate", ""), []),
        (("nothing", "--x"), []),
    ],
)
def test_tab_in_bash(words: Sequence[str], offered: Sequence[str], bash_script: Path) -> None:
    assert tab(bash_script, *words) == offered


def test_tab_offers_every_verb(bash_script: Path) -> None:
    assert tab(bash_script, "") == list(VERBS)


def test_the_script_for_zsh_has_verbs_with_their_summaries(capsys: pytest.CaptureFixture[str]) -> None:
    out = headway(capsys, "completion", "zsh").out
    assert out.startswith("#compdef headway\n")
    assert "'status:Show a running deployment'" in out
    assert '"status "*) verbs=() flags=(--url --api-key-env' in out


def test_it_is_installed_by_one_line_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/usr/bin/bash")
    for name in ("XDG_DATA_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".bashrc").write_text("alias ll='ls -l'", encoding="utf-8")
    for _ in range(2):
        assert headway(capsys, "completion", "--install").code == 0
    lines = (tmp_path / ".bashrc").read_text(encoding="utf-8").splitlines()
    assert (len(lines), lines[0]) == (2, "alias ll='ls -l'")
    shown = ["bash", "--rcfile", str(tmp_path / ".bashrc"), "-i", "-c", "complete -p headway"]
    ended = subprocess.run(shown, capture_output=True, text=True, env=dict(os.environ), check=False)
    assert "-F _headway headway" in ended.stdout


def test_other_shells_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", "/bin/fish")
    assert "not 'fish'" in headway(capsys, "completion").complaint()
