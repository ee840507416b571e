"""The model name that an engine's command line serves.

The flags, in order of precedence, are those of Dynamo's workers (vLLM, SGLang, TensorRT-LLM) and of its
mocker; the name that requests carry comes before the name or path that the weights are loaded from. `args`
and `command` are lists whose items may each be one word or a piece of shell (`["-c", "python -m dynamo.vllm
--model M"]`).
"""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from actors.connectors.kube.target import mapping

FLAGS = ("--served-model-name", "--model-name", "--model", "--model-path")


def served_model(container: Mapping[str, Any]) -> str | None:
    """The model's name as the command line gives it, None if it gives none or a variable."""
    words = [*_words(container.get("command")), *_words(container.get("args"))]
    for flag in FLAGS:
        for position, word in enumerate(words):
            name = word.removeprefix(f"{flag}=") if word.startswith(f"{flag}=") else None
            if word == flag and position + 1 < len(words):
                name = words[position + 1]
            if name and not name.startswith("$"):
                return name
    return None


def main_container(service: Mapping[str, Any]) -> Mapping[str, Any]:
    """The container that runs the engine, in a service of a Dynamo graph."""
    return mapping(mapping(service.get("extraPodSpec")).get("mainContainer"))


def _words(value: object) -> Iterator[str]:
    for item in [value] if isinstance(value, str) else value if isinstance(value, list) else []:
        try:
            yield from shlex.split(str(item))
        except ValueError:
            # A script with an unbalanced quote is the shell's to judge; whitespace still separates the flags.
            yield from str(item).split()
