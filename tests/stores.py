"""Stores for tests."""

import threading

from tests.patience import PATIENCE_S


class MemoryStore:
    """A dictionary."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        """The value, None if there is none."""
        return self._values.get(key)

    def put(self, key: str, value: bytes) -> None:
        """Replace the value."""
        self._values[key] = value

    def delete(self, key: str) -> None:
        """Remove the value if there is one."""
        self._values.pop(key, None)

    def keys(self, prefix: str = "") -> list[str]:
        """The keys that begin so, sorted."""
        return sorted(key for key in self._values if key.startswith(prefix))


class FailingStore(MemoryStore):
    """Takes no write while it has a `fault`."""

    fault: Exception | None = None

    def put(self, key: str, value: bytes) -> None:
        """Replace the value, or raise the fault."""
        if self.fault is not None:
            raise self.fault
        super().put(key, value)


class GatedStore(MemoryStore):
    """Writes nothing until it is opened; `order` has the keys as they were written."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.order: list[str] = []

    def put(self, key: str, value: bytes) -> None:
        """Replace the value once the gate is open."""
        assert self.open.wait(PATIENCE_S)
        self.order.append(key)
        super().put(key, value)
