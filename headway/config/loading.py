"""YAML file + overrides → HeadwayConfig, and names of profiles → directories.

Overrides are dotted keys, as command-line flags set them. YAML is read strictly: duplicate keys and text that
is not a mapping are errors. Plain scalars mean what YAML 1.2 says: numbers are decimal or begin with 0x, so
`1e3` is a number and `1:30`, which YAML 1.1 takes for ninety, is text; so is a date.
"""

import re
from collections.abc import Hashable, Mapping
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError, create_model

from headway.config.base import ConfigError, every_fault, shown
from headway.config.models import HeadwayConfig
from headway.config.planner import planner_model

OPTIONS = "options"
"""What an error names as its source when an override, not the file, holds the fault."""

DEFAULTS: Mapping[str, Any] = {}


def load_config(path: str | Path | None = None, overrides: Mapping[str, Any] = DEFAULTS) -> HeadwayConfig:
    """Settings from a YAML file (None: the defaults) with overrides such as `{"slo.ttft_ms": 200}`.

    An override of None means "not given". An override of a key below `pools.mixed` or `pools.prefill`
    adds that pool. ConfigError has one line: source, dotted key, what is wrong; its `faults` have all.
    """
    source = str(path) if path is not None else OPTIONS
    tree = config_tree(path, overrides)
    given = {key: value for key, value in overrides.items() if value is not None}
    try:
        return HeadwayConfig.model_validate(tree)
    except ValidationError as error:
        faults = []
        for key, fault in every_fault(error, json_schema()):
            named = OPTIONS if any(_under(key, override) for override in given) else source
            faults.append(": ".join(filter(None, (named, key, fault))))
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise ConfigError(faults[0] + more, faults) from error


def config_tree(path: str | Path | None = None, overrides: Mapping[str, Any] = DEFAULTS) -> dict[str, Any]:
    """What `load_config` validates, as a file would hold it: the keys of the file, with overrides over them.

    ConfigError where the file cannot be read.
    """
    tree = read_yaml(Path(path)) if path is not None else {}
    for key, value in overrides.items():
        if value is not None:
            tree = _with(tree, key, value)
    return tree


@cache
def json_schema() -> dict[str, Any]:
    """The JSON schema of the configuration file."""
    planner = planner_model()
    whole = create_model(
        "HeadwayConfig", __base__=HeadwayConfig, __doc__=HeadwayConfig.__doc__, planner=(planner, planner())
    )
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **whole.model_json_schema()}


def _with(tree: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:  # noqa: ANN401 - any setting
    head, _, rest = key.partition(".")
    if not rest:
        return {**tree, head: value}
    below = tree.get(head)
    return {**tree, head: _with(below if isinstance(below, Mapping) else {}, rest, value)}


def _under(key: str, override: str) -> bool:
    return key == override or key.startswith(override + ".")


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


NAMES_SHOWN = 4
"""Shipped profiles that an error names: those most like what was asked for."""
EMBEDDED = Path(__file__).parent.parent / "profiles"
_MARK = "selected_prefill_interpolation"


def embedded_profiles(root: Path = EMBEDDED) -> tuple[str, ...]:
    """Names of the shipped profiles, sorted."""
    return tuple(sorted(path.parent.name for path in root.glob(f"*/{_MARK}")))


def _likeness(name: str, other: str) -> float:
    return SequenceMatcher(None, name, other).ratio()


def resolve_profile(name: str, root: Path = EMBEDDED, key: str = "engine.profile") -> Path:
    """The directory of a profile: an existing directory wins, then a shipped profile of that name.

    A leading `profiles/` is accepted before a shipped name. ConfigError begins with `key`, and
    lists the shipped names that are most like it.
    """
    if name and Path(name).is_dir():
        return Path(name)
    known = embedded_profiles(root)
    bare = name.removeprefix("profiles/").rstrip("/")
    if bare in known:
        return root / bare
    shipped = ", ".join(sorted(known, key=lambda other: -_likeness(bare, other))[:NAMES_SHOWN]) or "none"
    if len(known) > NAMES_SHOWN:
        shipped += f"; `headway profile list` shows all {len(known)}"
    raise ConfigError(f"{key}: {name!r} is neither a directory nor a shipped profile ({shipped})")
