"""What only live operation needs of the settings, checked before anything starts."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from headway.config import ConfigError, HeadwayConfig
from headway_cli.errors import CliError


def check_live(config: HeadwayConfig, path: str | None) -> None:
    """The gateway's keys and tokenizer, the object of a Kubernetes connector. CliError names file and key."""
    from actors.connectors.kube.location import locate
    from serve_apps.gateway.access import make_access
    from serve_apps.gateway.tokens import make_counter

    with _located(path):
        make_access(config.gateway)
        make_counter(config.gateway.tokenizer)
        if config.connector.kind == "kubernetes":
            locate(config.connector.kubernetes, os.environ)


@contextmanager
def _located(path: str | None) -> Iterator[None]:
    from actors.connectors.protocol import Refused

    try:
        yield
    except (ConfigError, Refused) as error:
        raise CliError(f"{path}: {error}" if path else str(error)) from error
