"""Where conversations live: session → the replicas of its latest request, the least recent forgotten."""

from collections import OrderedDict

from headway.routing.replica import Replica

MOST_SESSIONS = 100_000


class Sessions:
    """The latest (prefill, decode) replicas of each session."""

    def __init__(self, most: int = MOST_SESSIONS) -> None:
        self._most = most
        self._homes: OrderedDict[str, tuple[Replica, Replica]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._homes)

    def home(self, session: str | None) -> tuple[Replica, Replica] | None:
        """The replicas of a session's latest request, GONE ones included; None for a new one."""
        return None if session is None else self._homes.get(session)

    def placed(self, session: str | None, prefill: Replica, decode: Replica) -> None:
        """A request of the session goes there."""
        if session is None:
            return
        self._homes[session] = (prefill, decode)
        self._homes.move_to_end(session)
        if len(self._homes) > self._most:
            self._homes.popitem(last=False)
