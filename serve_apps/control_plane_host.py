"""Serve deployment `ControlPlane`: the control plane's actors come up and end with the application.

The actors are detached and named: they live on when this replica, the driver or Serve's controller is
killed, and a new replica finds them again. Only the orderly end of the application ends them.
"""

import asyncio

from ray import serve

from actors import control_plane
from actors.external_scaling import keep_external_scaling
from headway.config import HeadwayConfig


class ControlPlane:
    """Starts the named actors, and keeps the application open to their replica counts."""

    async def __init__(self, config: HeadwayConfig) -> None:  # type: ignore[misc] # Serve awaits it
        application = serve.get_replica_context().app_name
        self._token = await asyncio.to_thread(control_plane.start, config, application)
        self._scaling = asyncio.create_task(keep_external_scaling(application))

    async def __del__(self) -> None:
        self._scaling.cancel()
        await asyncio.to_thread(control_plane.stop, token=self._token)
