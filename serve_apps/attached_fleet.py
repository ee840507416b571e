"""The application of an attached fleet: one control plane, and its API over HTTP, for deployments of which
others run the engines. Its `user_config` says which there are, as that of `fleet_host` does.
"""

from ray import serve
from starlette.types import ASGIApp

from actors.keeping import Keeper
from headway.config import FleetConfig, HeadwayConfig
from serve_apps.access import make_access
from serve_apps.control_host import ControlApp, control_app, control_deployment
from serve_apps.fleet_host import Changes, FleetControlPlane, Told, budget, members
from serve_apps.gateway.many_models import ManyModels
from serve_apps.http_server import HttpServer, WithoutLifespan


@serve.ingress()
class AttachedFleet(FleetControlPlane):
    """Starts the named actors for all deployments, and serves their API."""

    async def __init__(self, common: HeadwayConfig) -> None:  # type: ignore[misc] # Serve awaits it
        super().__init__(Keeper(routes=False))
        self._access, self._told = make_access(common.gateway), Changes()
        self._apps = dict[str, ControlApp]()
        self._front = ManyModels(self._access, budget)
        gateway = common.gateway
        self._server = HttpServer(self._front, gateway.host, gateway.port, tls=gateway.tls)
        await self._server.start()

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return WithoutLifespan(self._front)

    async def reconfigure(self, user_config: Told) -> None:
        """Serve these deployments. ControlPlaneError of one that cannot be; the others are."""
        fresh, gone = self._told.see(user_config)
        for name in gone:
            self._apps.pop(name).end_live()
        for name, config in fresh.items():
            self._apps[name] = control_app(config, name, self._access)
        self._front.change({name: self._apps[name] for name in user_config.get("deployments", {})})
        await super().reconfigure(user_config)

    async def addresses(self) -> tuple[str, ...]:
        """Where the own server listens, as the settings name the host."""
        return (self._server.address,)

    async def __del__(self) -> None:
        for app in self._apps.values():
            app.end_live()
        await self._server.stop()
        await super().__del__()


def attached_application(fleet: FleetConfig) -> serve.Application:
    """The control plane of an attached fleet."""
    return control_deployment(AttachedFleet, members(fleet)).bind(fleet.common)
