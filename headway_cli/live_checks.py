"""The checks of what only live operation needs, without a simulator: keys, TLS, tenants, engine, target."""

from collections.abc import Callable, Iterator

from headway.config import ConfigError, HeadwayConfig
from headway.config.live import GatewaySettings
from headway_cli.errors import CliError


def attach_settings(path: str | None) -> HeadwayConfig:
    """The configuration of a control plane alone, checked."""
    from serve_apps.arguments import read_control_arguments

    config = read_control_arguments({} if path is None else {"config": path})
    check_live(config, path, engines=False)
    return config


def check_live(config: HeadwayConfig, path: str | None, *, engines: bool = True) -> None:
    """Check what only live operation needs; CliError names file and key of the first fault.

    Without `engines`: as far as a control plane alone needs it.
    """
    for step in live_checks(config, path, engines=engines):
        step()


def live_checks(
    config: HeadwayConfig, path: str | None, *, engines: bool = True
) -> Iterator[Callable[[], None]]:
    """The checks of what only live operation needs: planner, keys, tenants, TLS, engine, connector."""
    from actors.connectors import connector_problems
    from actors.connectors.protocol import Refused
    from headway.planning.policies import refuse_simulated_only
    from headway.planning.types import PlanningError
    from serve_apps.access import make_access
    from serve_apps.arguments import beside
    from serve_apps.tls import Certificate
    from serve_apps.tracing.spans import check_tracing

    def gateway() -> GatewaySettings:
        return beside(path).gateway if path else config.gateway

    def certificate() -> None:
        if (tls := gateway().tls) is not None:
            Certificate(tls)

    def connector() -> None:
        if problems := connector_problems(config):
            raise ConfigError("; ".join(problems))

    def named(check: Callable[[], object]) -> Callable[[], None]:
        def step() -> None:
            try:
                check()
            except (ConfigError, PlanningError, Refused) as error:
                raise CliError(f"{path}: {error}" if path else str(error)) from error

        return step

    yield named(lambda: refuse_simulated_only(config))
    yield named(lambda: make_access(gateway()))
    yield named(certificate)
    yield named(lambda: check_tracing(config.tracing))
    if engines:
        from serve_apps.gateway.admission import check_tenants

        yield named(lambda: check_tenants(config.routing, make_access(gateway()).tenants))
        yield named(lambda: _check_engine(config, path))
    yield named(connector)


def _check_engine(config: HeadwayConfig, path: str | None) -> None:
    """Check the engine and its tokenizer; a model is looked for beside the file."""
    from headway.engine.kinds import engine_kind
    from serve_apps.arguments import beside
    from serve_apps.gateway.prompts import make_prompts

    kind = engine_kind(config)
    found = beside(path) if path and kind.file_settings else config
    kind.check_here(found)
    with kind.quiet():
        kind.check_accepted(found)
        make_prompts(found)
