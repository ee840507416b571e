"""Entry point. It imports nothing heavy itself, so that an interrupt at any moment finds it prepared."""

import os
import signal
import sys
from types import FrameType

from headway_cli import INTERRUPTED


def main() -> None:
    """Run the command of this process's arguments and exit; being ended still removes temporary files."""
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:
        signal.signal(signal.SIGINT, _leave)
    from headway_cli.app import run

    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(run(sys.argv[1:]))


def _leave(number: int, frame: FrameType | None) -> None:
    """Interrupted while importing: nothing to clean up yet, and an exception could be lost in an import."""
    os.write(sys.stderr.fileno(), b"headway: interrupted\n")
    os._exit(INTERRUPTED)
