"""One actor for all applications: it has a part for each, such as its planner, and hands calls on.

    Hosted = hosting(Planner, make)         an actor's class with the public methods of `Planner`
    hosted.status.remote()                  of the first application
    hosted.status.remote(application="b")   of another

A hundred models would be seven hundred processes else. A part that cannot be made, or fails, does so alone:
calls of it raise ActorGone, and it is tried again every AGAIN_S. An actor that Ray restarts makes all parts
again, for the applications that the store has (`actors.applications`).
"""

import inspect
import logging
import time
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

from actors.applications import applications, first, store_of
from actors.names import ActorGone
from actors.store import InternalKvStore, Store

AGAIN_S = 10.0

Make = Callable[[str, str, Store], Any]
"""Settings as JSON, an application and its store → its part."""
Mine = Callable[[str], bool]
"""Whether an application with these settings has its part here."""

logger = logging.getLogger(__name__)


class Parts:
    """The parts of one kind."""

    def __init__(self, kind: str, make: Make, known: Mapping[str, str], mine: Mine) -> None:
        """`known` has settings by application, for a store that has none. Raises what `make` raises."""
        self._kind, self._make, self._making = kind, make, Lock()
        self._parts: dict[str, Any] = {}
        self._first, self._tried_s = "", dict[str, float]()
        served = {name: settings for name, settings in _settings().items() if mine(settings)}
        for application, settings in (served or known).items():
            if len(served) < 2:
                self.add(application, settings)
            else:
                self._try(application, settings)

    def add(self, application: str, settings: str) -> None:
        """Have a part of an application; made of these settings if there is none. What `make` raises."""
        with self._making:
            if application not in self._parts:
                self._parts[application] = self._make(settings, application, store_of(application))
                self._first = first(InternalKvStore()) or self._first or application

    def of(self, application: str) -> Any:  # noqa: ANN401 - any part
        """The part of an application, by default of the first. ActorGone."""
        name = application or (self._first if self._first in self._parts else next(iter(self._parts), ""))
        if name not in self._parts and time.monotonic() - self._tried_s.get(name, -AGAIN_S) >= AGAIN_S:
            self._tried_s[name] = time.monotonic()
            # Of one that is not served nothing is made.
            if (settings := _settings().get(name)) is not None:
                self._try(name, settings)
        if name not in self._parts:
            raise ActorGone(f"{self._kind} has nothing of the application {name!r}")
        return self._parts[name]

    def remove(self, application: str) -> Any:  # noqa: ANN401 - an awaitable or None
        """Have no part of an application any more; what its `close` returns."""
        part = self._parts.pop(application, None)
        return part.close() if hasattr(part, "close") else None

    def _try(self, application: str, settings: str) -> None:
        """Add it; what goes wrong is logged."""
        self._tried_s[application] = time.monotonic()
        try:
            self.add(application, settings)
        except Exception:
            logger.exception("%s of %s cannot be made", self._kind, application)


def _settings() -> dict[str, str]:
    """Those of the applications that the store has."""
    return {name: each.settings for name, each in applications(InternalKvStore()).items()}


def hosting(kind: type, make: Make, mine: Mine = lambda _: True) -> type:
    """The class of the actor; its constructor takes `known` as `Parts` does.

    With a coroutine among the methods of `kind` all parts share one event loop, else they share threads.
    """
    methods = {name: each for name, each in inspect.getmembers(kind, inspect.isfunction) if name[0] != "_"}
    on_loop = any(inspect.iscoroutinefunction(each) for each in methods.values())
    host: dict[str, Any] = {name: _forward(name, each, on_loop=on_loop) for name, each in methods.items()}
    return type(kind.__name__, (_LoopHost if on_loop else _ThreadHost,), {**host, "make": make, "mine": mine})


class _ThreadHost:
    make: Make
    mine: Mine

    def __init__(self, known: Mapping[str, str]) -> None:
        self.parts = Parts(type(self).__name__, type(self).make, known, type(self).mine)

    def add(self, application: str, settings: str) -> None:
        """Have a part of an application, made of these settings if there is none."""
        self.parts.add(application, settings)

    def remove(self, application: str) -> None:
        """Have no part of an application any more."""
        self.parts.remove(application)


class _LoopHost:
    make: Make
    mine: Mine

    async def __init__(self, known: Mapping[str, str]) -> None:  # type: ignore[misc] # Ray awaits it
        self.parts = Parts(type(self).__name__, type(self).make, known, type(self).mine)

    async def add(self, application: str, settings: str) -> None:
        """Have a part of an application, made of these settings if there is none."""
        self.parts.add(application, settings)

    async def remove(self, application: str) -> None:
        """Have no part of an application any more."""
        if inspect.isawaitable(closing := self.parts.remove(application)):
            await closing


def _forward(name: str, method: Callable[..., Any], *, on_loop: bool) -> Callable[..., Any]:
    """The method of a host: that of the part of `application`."""

    async def awaited(self: Any, *args: Any, application: str = "", **more: Any) -> Any:  # noqa: ANN401
        answer = getattr(self.parts.of(application), name)(*args, **more)
        return await answer if inspect.isawaitable(answer) else answer

    def called(self: Any, *args: Any, application: str = "", **more: Any) -> Any:  # noqa: ANN401
        return getattr(self.parts.of(application), name)(*args, **more)

    forward: Callable[..., Any] = awaited if on_loop else called
    forward.__name__, forward.__doc__ = name, method.__doc__
    return forward
