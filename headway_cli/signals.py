"""Interrupts of commands that hold processes: as an event while they serve, ignored while they clean up."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set, instead of what they did before."""
    told = threading.Event()

    def tell(_number: int, _frame: FrameType | None) -> None:
        told.set()

    with _handled_by(tell):
        yield told


@contextmanager
def uninterrupted() -> Iterator[None]:
    """SIGINT and SIGTERM have no effect within."""
    with _handled_by(signal.SIG_IGN):
        yield


@contextmanager
def _handled_by(handler: signal.Handlers | Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in STOPPING}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
