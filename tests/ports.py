"""Ports for servers under test."""

import os
import socket
from itertools import count

FIRST, LAST = 20_000, 32_000
"""Below those that Linux gives to outgoing connections: nobody takes one between its choice and its use."""

_next = count(os.getpid() * 1009)


def free_port() -> int:
    """A port of loopback that nobody listens on, other than those that this process was given before."""
    while True:
        port = FIRST + next(_next) % (LAST - FIRST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
