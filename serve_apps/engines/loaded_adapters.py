"""The LoRA adapters that an engine has loaded: as many as a batch can use, the least recently used go first.

    wait_s = adapters.begin(name, now_s)      # seconds until it is there
    adapters.end(name)

Those in use stay. Where more are in use than there is room for, all count as loaded: an engine has the
requests of the last ones wait.
"""

from collections import OrderedDict
from collections.abc import Iterable


class LoadedAdapters:
    """With `loaded` at the start; one that is missing takes `load_s`. `room` None: the engine has none."""

    def __init__(self, room: int | None, loaded: Iterable[str] = (), load_s: float = 0.0) -> None:
        self.room, self._load_s = room, load_s
        self._ready_s: OrderedDict[str, float] = OrderedDict.fromkeys(loaded, 0.0)
        self._users: dict[str, int] = {}
        self._shrink()

    @property
    def names(self) -> tuple[str, ...] | None:
        """The least recently used first."""
        return None if self.room is None else tuple(self._ready_s)

    def begin(self, name: str, now_s: float = 0.0) -> float:
        """A request uses it from now on; seconds until it can."""
        if not name:
            return 0.0
        self._users[name] = self._users.get(name, 0) + 1
        self._ready_s.setdefault(name, now_s + self._load_s)
        self._ready_s.move_to_end(name)
        self._shrink()
        return max(0.0, self._ready_s[name] - now_s)

    def end(self, name: str) -> None:
        """A request that used it has ended."""
        if not name:
            return
        self._users[name] -= 1
        if not self._users[name]:
            del self._users[name]
            self._shrink()

    def _shrink(self) -> None:
        while len(self._ready_s) > (self.room or 0):
            idle = next((name for name in self._ready_s if name not in self._users), None)
            if idle is None:
                return
            del self._ready_s[idle]
