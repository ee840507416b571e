"""Connectors carry decisions out: Ray Serve directly, an outside system by decision ids, or Kubernetes.

Each is declared under its name in `headway.config.CONNECTORS`: built-in ones, and those of other packages.
"""

from pydantic import ValidationError

from actors.connectors.protocol import Connector, ConnectorKind
from headway.config import CONNECTORS, ConfigError, HeadwayConfig
from headway.config.base import describe
from headway.extensions import ExtensionError

__all__ = ["connector_kind", "connector_problems", "make_connector"]


def connector_kind(config: HeadwayConfig) -> ConnectorKind:
    """The declaration of `connector.kind`; ConfigError if its package does not have it."""
    try:
        kind = CONNECTORS.load(config.connector.kind)
    except ExtensionError as error:
        raise ConfigError(f"connector.kind: {error}") from error
    if not isinstance(kind, ConnectorKind):
        raise ConfigError(f"connector.kind: {config.connector.kind!r} names no ConnectorKind, but {kind!r}")
    return kind


def make_connector(config: HeadwayConfig, application: str) -> Connector:
    """The configured connector. Making it does no I/O."""
    return connector_kind(config).make(config, application)


def connector_problems(config: HeadwayConfig) -> list[str]:
    """Reasons why the configured connector cannot be started with these settings, a line each."""
    kind = connector_kind(config)
    return [*_option_problems(kind, config), *kind.problems(config)]


def _option_problems(kind: ConnectorKind, config: HeadwayConfig) -> list[str]:
    try:
        kind.options.model_validate(dict(config.connector.options))
    except ValidationError as error:
        key, fault = describe(error, kind.options.model_json_schema())
        return [": ".join(filter(None, ("connector.options" + f".{key}" * bool(key), fault)))]
    return []
