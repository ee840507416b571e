"""Sets `num_replicas` inside the text of a Serve config, leaving the rest of the text as it is.

A RayService holds its Serve config as one string of YAML. Parsing and writing it again would lose comments
and layout, so the edit is made at the place where the parser found the number. The result is parsed again
and compared with what was meant; where the text is too clever for that (anchors shared by two deployments,
merge keys), the whole config is written anew from its parsed form: correct, but without its comments.
"""

import copy
from collections.abc import Mapping
from typing import Any

import yaml

from actors.connectors.kube.target import mapping
from actors.connectors.protocol import Refused

COUNT = "num_replicas"


def read(text: object) -> Mapping[str, Any]:
    """The parsed config; Refused if it is no YAML mapping."""
    if not isinstance(text, str):
        raise Refused("spec.serveConfigV2: missing, or no text")
    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise Refused(f"spec.serveConfigV2: no valid YAML: {error}") from error
    if not isinstance(config, Mapping):
        raise Refused("spec.serveConfigV2: should be a mapping with the key applications")
    return config


def applications(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The applications by name."""
    return {
        str(mapping(item).get("name", "default")): mapping(item)
        for item in _items(config.get("applications"))
    }


def deployments(application: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The deployments of an application by name."""
    return {str(mapping(item).get("name")): mapping(item) for item in _items(application.get("deployments"))}


def with_counts(text: str, application: str, counts: Mapping[str, int]) -> str:
    """The text with `num_replicas` of these deployments set. They must be listed in it."""
    meant = _meant(read(text), application, counts)
    edited = text
    for deployment, count in counts.items():
        edited = _edited(edited, application, deployment, count)
    return edited if _parses_to(edited, meant) else yaml.safe_dump(meant, sort_keys=False)


def _meant(config: Mapping[str, Any], application: str, counts: Mapping[str, int]) -> dict[str, Any]:
    # Values that anchors share become values of their own, so that a count is set once.
    meant: dict[str, Any] = _unshared(dict(config))
    for item in _items(meant.get("applications")):
        if item.get("name", "default") != application:
            continue
        for deployment in _items(item.get("deployments")):
            if deployment.get("name") in counts:
                deployment[COUNT] = counts[deployment["name"]]
    return meant


def _unshared(value: Any) -> Any:  # noqa: ANN401 - whatever YAML holds
    if isinstance(value, Mapping):
        return {key: _unshared(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_unshared(item) for item in value]
    return copy.copy(value)


def _parses_to(text: str, meant: Mapping[str, Any]) -> bool:
    try:
        return bool(yaml.safe_load(text) == meant)
    except yaml.YAMLError:
        return False


def _edited(text: str, application: str, deployment: str, count: int) -> str:
    node = _deployment_node(text, application, deployment)
    if node is None:
        return text
    value = _child(node, COUNT)
    if isinstance(value, yaml.ScalarNode):
        return _replaced(text, value, str(count))
    name = _child(node, "name")
    if name is None:
        return text
    separator = ", " if node.flow_style else "\n" + " " * node.start_mark.column
    return text[: name.end_mark.index] + f"{separator}{COUNT}: {count}" + text[name.end_mark.index :]


def _replaced(text: str, node: yaml.ScalarNode, value: str) -> str:
    return text[: node.start_mark.index] + value + text[node.end_mark.index :]


def _deployment_node(text: str, application: str, deployment: str) -> yaml.MappingNode | None:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    found = _named(_child(root, "applications"), application, "default")
    return _named(_child(found, "deployments"), deployment, None)


def _named(sequence: yaml.Node | None, name: str, unnamed: str | None) -> yaml.MappingNode | None:
    for item in sequence.value if isinstance(sequence, yaml.SequenceNode) else []:
        own = _child(item, "name")
        if isinstance(item, yaml.MappingNode) and (own.value if own is not None else unnamed) == name:
            return item
    return None


def _child(node: yaml.Node | None, key: str) -> yaml.Node | None:
    for own, value in node.value if isinstance(node, yaml.MappingNode) else []:
        if own.value == key:
            found: yaml.Node = value
            return found
    return None


def _items(value: object) -> list[Any]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
