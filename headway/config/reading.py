"""YAML text → plain data, strictly: duplicate keys and text that is not a mapping are errors."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from headway.config.errors import ConfigError


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key written twice; YAML forbids it, PyYAML would keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key {key_node.value!r} appears twice", problem_mark=key_node.start_mark
                )
            seen.add(key_node.value if isinstance(key_node.value, str) else id(key_node))
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; an empty file is an empty mapping.

    ConfigError names the file, and the line where the text is not YAML.
    """
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise ConfigError(f"{path}: line {line}: {error.problem}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is not YAML: {' '.join(str(error).split())}") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: should hold keys and values, not {type(data).__name__}")
    return data
