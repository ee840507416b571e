"""Replicas that make no progress on requests of this gateway: they are named, and get nothing new.

What a replica sends is progress. Where nothing has come since the last look, it is asked what its engine has
done. So busy replicas cost nothing, a process that hangs does not answer, and an engine that hangs beside
its process says the same again and again. While others run, a silent replica is suspect
(`serve_apps.membership`).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass

from headway.planning import Role
from headway.planning.silence import Silence, Watch
from serve_apps.gateway.backend import BackendError
from serve_apps.membership import Member, Membership

PERIOD_S, ANSWER_WITHIN_S = 0.5, 5.0
SUSPECT_S = 2.5
"""Longer than until the next look."""

Received = Callable[[Role, str], int]
"""Messages so far from a replica."""
Ask = Callable[[Role, str], Awaitable[tuple[float, ...]]]
"""What a replica's engine has done so far. BackendError."""


@dataclass(slots=True)
class _Heard:
    """What was received at the last look, how much of it answered us, and the engine's last word."""

    received: int
    answers: int = 0
    engine: tuple[float, ...] = ()
    asking: asyncio.Task[None] | None = None


class Silences:
    """Looks at the pools of one gateway every PERIOD_S while `run` does. One event loop."""

    def __init__(
        self,
        pools: Mapping[str, tuple[Role, Membership]],
        received: Received,
        ask: Ask,
        after_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`pools` by the names of their deployments; `clock` is theirs."""
        self._pools, self._received, self._ask, self._clock = pools, received, ask, clock
        self._watch = Watch(after_s)
        self._heard: dict[str, _Heard] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        try:
            while True:
                await asyncio.sleep(PERIOD_S)
                self.look()
        finally:
            for heard in self._heard.values():
                if heard.asking is not None:
                    heard.asking.cancel()

    def look(self) -> None:
        """See what has come since the last look."""
        now_s = self._clock()
        busy = {part: (role, member) for part, role, member in self._busy()}
        self._watch.begin(now_s)
        self._watch.keep(busy)
        self._heard = {part: heard for part, heard in self._heard.items() if part in busy}
        for part, (role, member) in busy.items():
            self._see(now_s, part, role, member)
        silent = {silence.part for silence in self._watch.silent(now_s)}
        for name, (_, pool) in self._pools.items():
            hanging = [member.replica for member in pool.members if f"{name}#{member.replica}" in silent]
            # Where all are, what is new may as well wait there.
            for replica in hanging if len(hanging) < len(pool) else ():
                pool.suspect(replica, now_s, SUSPECT_S)

    def now(self) -> Sequence[Silence]:
        """The silent replicas as DEPLOYMENT#REPLICA, since how many seconds, and our requests there."""
        now_s = self._clock()
        return [each._replace(since_s=now_s - each.since_s) for each in self._watch.silent(now_s)]

    def _busy(self) -> Iterator[tuple[str, Role, Member]]:
        for name, (role, pool) in self._pools.items():
            for member in pool.members:
                if member.requests:
                    yield f"{name}#{member.replica}", role, member

    def _see(self, now_s: float, part: str, role: Role, member: Member) -> None:
        received, known = self._received(role, member.replica), self._heard.get(part)
        heard = self._heard[part] = known or _Heard(received)
        self._watch.heard(now_s, part, len(member.requests), (received - heard.answers, heard.engine))
        if known is not None and received == heard.received and heard.asking is None:
            # In a context of its own: Serve cancels with a request whatever was called in its context.
            asked = self._asked(heard, role, member.replica)
            heard.asking = asyncio.create_task(asked, context=Context())
        heard.received = received

    async def _asked(self, heard: _Heard, role: Role, replica: str) -> None:
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                heard.engine = await self._ask(role, replica)
            heard.answers += 1
        except (BackendError, TimeoutError):
            pass  # no answer is none of progress
        finally:
            heard.asking = None
