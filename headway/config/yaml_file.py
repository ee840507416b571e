"""YAML files, read strictly: duplicate keys and text that is not a mapping are errors.

Plain scalars mean what YAML 1.2 says: numbers are decimal or begin with 0x, so `1e3` is a number and `1:30`,
which YAML 1.1 takes for ninety, is text; so is a date.
"""

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from headway.config.base import ConfigError, Settings, describe, shown

M = TypeVar("M", bound=Settings)
INT, FLOAT, TIMESTAMP = (f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "timestamp"))
WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9]*|0x[0-9a-fA-F]+)$")
DECIMAL = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
)
MISTAGGED = (ValueError, LookupError, AttributeError, TypeError)
"""What PyYAML raises for a scalar that is not what its tag says, such as `!!int x`."""


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key written twice, of which PyYAML would keep the last."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own table, without its numbers and dates
        first: [(tag, pattern) for tag, pattern in rules if tag not in (INT, FLOAT, TIMESTAMP)]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: ANN401
        try:
            return super().construct_object(node, deep)
        except MISTAGGED as error:
            kind = node.tag.rpartition(":")[2]
            raise _fault(f"{shown(node.value)} cannot be read as {kind}", node) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise _fault("a key should be text", key_node)
            if key_node.value in seen:
                raise _fault(f"key {key_node.value!r} appears twice", key_node)
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


def _fault(problem: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


_StrictLoader.add_implicit_resolver(INT, WHOLE, list("-+0123456789"))
_StrictLoader.add_implicit_resolver(FLOAT, DECIMAL, list("-+.0123456789"))


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
    except RecursionError as error:
        raise ConfigError(f"{path}: is nested too deeply") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: should hold keys and values, not {type(data).__name__}")
    return data


def read_settings(path: Path, model: type[M]) -> M:
    """A YAML file as a model of its own; ConfigError has one line: file, key, fault."""
    tree = read_yaml(path)
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        key, fault = describe(error, model.model_json_schema())
        raise ConfigError(f"{path}: {key}: {fault}" if key else f"{path}: {fault}") from error
