"""What only live operation needs of the settings, checked before anything starts."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from headway.config import ConfigError, HeadwayConfig
from headway_cli.errors import CliError


def check_live(config: HeadwayConfig, path: str | None) -> None:
    """Gateway keys, tokenizer, model, a Kubernetes connector's object, a planner that engines can follow.

    CliError names file and key.
    """
    from actors.connectors.kube_object import locate
    from actors.planning.policies import refuse_simulated_only
    from serve_apps.gateway.app import make_access
    from serve_apps.gateway.request import make_counter

    with _located(path):
        refuse_simulated_only(config)
        make_access(config.gateway)
        if config.engine.kind == "vllm":
            _check_vllm(path)
        else:
            make_counter(config.gateway.tokenizer)
        if config.connector.kind == "kubernetes":
            locate(config.connector.kubernetes, os.environ)


def _check_vllm(path: str | None) -> None:
    """The model, looked for beside the file; then what only vLLM itself knows."""
    from serve_apps.arguments import beside
    from serve_apps.engines.vllm.arguments import model_of
    from serve_apps.engines.vllm.loading import check_accepted, check_here, check_model, quiet
    from serve_apps.gateway.request import make_prompts

    found = beside(path)
    check_model(found)
    check_here(model_of(found))
    with quiet():
        check_accepted(found)
        make_prompts(found)


@contextmanager
def _located(path: str | None) -> Iterator[None]:
    from actors.connectors.protocol import Refused
    from headway.planning import PlanningError

    try:
        yield
    except (ConfigError, PlanningError, Refused) as error:
        raise CliError(f"{path}: {error}" if path else str(error)) from error
