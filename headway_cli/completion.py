"""`headway completion`: verbs and flags completed by Tab, in bash and zsh.

The script names every verb and flag itself, so that a Tab starts no Python; after an upgrade it is made anew.
"""

import os
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

from headway_cli.app import VERBS, brief, load_verb
from headway_cli.errors import CliError
from headway_cli.flags import argument, switch
from headway_cli.output import write_text

OF_ALL = ("--help", "--version")
"""Flags before a verb."""

# The cases, `"status "*) verbs=() flags=(--url) ;;`, are the same in both shells.
BASH = """\
# Tab for headway VERSION, made by `headway completion bash`.
_headway() {
  local word="${COMP_WORDS[COMP_CWORD]}"
  local -a verbs flags
  COMPREPLY=()
  if (( COMP_CWORD == 1 )); then
    verbs=(NAMES) flags=(OF_ALL)
  else
    case "${COMP_WORDS[1]} ${COMP_WORDS[2]} " in
CASES
    esac
    if (( COMP_CWORD > 2 )); then verbs=(); fi
  fi
  if [[ "$word" == -* ]]; then verbs=("${flags[@]}"); fi
  if (( ${#verbs[@]} )); then COMPREPLY=( $(compgen -W "${verbs[*]}" -- "$word") ); fi
}
complete -o default -F _headway headway
"""
ZSH = """\
#compdef headway
# Tab for headway VERSION, made by `headway completion zsh`.
_headway() {
  local -a verbs flags
  if (( CURRENT == 2 )); then
    verbs=(DESCRIBED) flags=(OF_ALL)
  else
    case "$words[2] $words[3] " in
CASES
    esac
    if (( CURRENT > 3 )); then verbs=(); fi
  fi
  if [[ "$words[CURRENT]" == -* ]]; then
    compadd -a flags
  elif (( $#verbs )); then
    _describe verb verbs
  else
    _files
  fi
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
compdef _headway headway
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH}


def completion(
    shell: Annotated[str | None, argument("SHELL", "bash or zsh; default: the one that SHELL names.")] = None,
    *,
    install: Annotated[
        bool, switch("--install", "Write the script, and let .bashrc or .zshrc read it.")
    ] = False,
) -> None:
    """Complete verbs and flags with Tab: print the script for bash or zsh, or install it."""
    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in SCRIPTS:
        raise CliError(f"completion: for bash and zsh, not {name or 'a shell without a name'!r}")
    if not install:
        print(script(name), end="")
        return
    place, settings = _places(name)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_text(place, script(name))
    line = f"[ -r {quote(str(place))} ] && . {quote(str(place))}"
    before = settings.read_text(encoding="utf-8") if settings.exists() else ""
    if line not in before.splitlines():
        with settings.open("a", encoding="utf-8") as file:
            file.write(("" if before.endswith("\n") or not before else "\n") + line + "\n")
    print(f"wrote {place}, which {settings} reads: Tab completes headway in new shells, or after: . {place}")


def _places(shell: str) -> tuple[Path, Path]:
    """The file of the script, and the shell's settings."""
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    home = Path((os.environ.get("ZDOTDIR") if shell == "zsh" else None) or Path.home())
    return data / "headway" / f"completion.{shell}", home / f".{shell}rc"


def script(shell: str) -> str:
    """The script for `bash` or `zsh`."""
    described = " ".join(quote(f"{name}:{brief(summary)}") for name, summary in VERBS.items())
    parts = {
        "CASES": "\n".join(_cases()),
        "DESCRIBED": described,
        "NAMES": " ".join(VERBS),
        "OF_ALL": " ".join(OF_ALL),
        "VERSION": version("headway"),
    }
    text = SCRIPTS[shell]
    for name, value in parts.items():
        text = text.replace(name, value)
    return text


def _cases() -> Iterator[str]:
    for name in VERBS:
        command = load_verb(name)
        nested = getattr(command, "commands", {})
        for inner, verb in nested.items():
            yield _case(f"{name} {inner}", verb, ())
        yield _case(name, command, nested)


def _case(words: str, command: Any, nested: Any) -> str:  # noqa: ANN401 - typer keeps these types private
    flags = [flag for option in command.params for flag in option.opts if flag.startswith("--")]
    return f'      "{words} "*) verbs=({" ".join(nested)}) flags=({" ".join([*flags, "--help"])}) ;;'
