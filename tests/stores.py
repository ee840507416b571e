"""A store for tests."""


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
