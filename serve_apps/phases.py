"""The two phases of a request on replicas that are named: what every path to an output is made of.

    kv            = prefill(replica, request)
    output, chunk = decode(replica, request, kv)       the first chunk tells that it has begun

A replica that costs an attempt is suspect, so that the next goes elsewhere: an engine that failed answers its
calls, at once and with the least load of all, until Serve replaces it.
"""

import time
from collections.abc import Mapping
from typing import Any

from ray.serve.handle import DeploymentHandle

from headway.planning import Role
from serve_apps.engines.protocol import EngineRequest, KvHandle, TokenChunk
from serve_apps.feeds import Feeds, Output
from serve_apps.membership import Membership, membership
from serve_apps.serve_call import Lost, ask, lean

ATTEMPTS = 3
"""Replicas that one request may see die before its first token, once they have taken it."""

UNTAKEN_S = 0.01
"""Seconds before the next choice when the replica chosen was gone."""


class Phases:
    """The pools of one application. Made and used on one event loop."""

    def __init__(self, handles: Mapping[Role, DeploymentHandle[Any]]) -> None:
        self.pools = {
            role: membership(handle.app_name, handle.deployment_name) for role, handle in handles.items()
        }
        self.mixed = Role.MIXED in handles
        """Whether the replicas do both phases."""
        self.computing_role, self.decoding_role = (
            (Role.MIXED, Role.MIXED) if self.mixed else (Role.PREFILL, Role.DECODE)
        )
        decoding = handles[self.decoding_role]
        self._feeds = Feeds(decoding, self.decoders)
        self._prefill = lean(handles[self.computing_role], "prefill")

    @property
    def computers(self) -> Membership:
        """The replicas that compute prompts."""
        return self.pools[self.computing_role]

    @property
    def decoders(self) -> Membership:
        """The replicas that decode."""
        return self.pools[self.decoding_role]

    async def prefill(self, replica: str, request: EngineRequest) -> KvHandle:
        """Compute the prompt there. Lost, or a BackendError."""
        pool = self.computers
        pool.sent(replica, request.request_id)
        try:
            kv: KvHandle = await ask(self._prefill.options(session_id=replica), request)
            return kv
        except Lost:
            pool.suspect(replica, time.monotonic())
            raise
        finally:
            pool.done(replica, request.request_id)

    async def decode(
        self, replica: str, request: EngineRequest, kv: KvHandle | None
    ) -> tuple[Output, TokenChunk | None]:
        """Begin to decode there; the output and its first chunk. Lost, or a BackendError."""
        output = self._feeds.start(replica, request, kv)
        started = False
        try:
            chunk = await output.next()
            started = True
            return output, chunk
        except Lost:
            self.decoders.suspect(replica, time.monotonic())
            raise
        finally:
            if not started:
                output.close()
