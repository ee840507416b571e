"""A clock for tests."""


class Clock:
    """Shows the seconds that it was set to."""

    def __init__(self, now_s: float = 1_000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s
