"""`headway top`: the status and the decisions of a running deployment, on this terminal until q.

A thread asks, so that keys are heard while a server does not answer. What was known stays on the screen then.
"""

import os
import select
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

from rich.live import Live

from headway.planning.records import DecisionRecord
from headway_cli.control import KEY_VARIABLE, ControlClient, KeyVariable, UrlOption, client
from headway_cli.decisions import DecisionLog
from headway_cli.errors import CliError
from headway_cli.flags import switch
from headway_cli.status import read_status
from headway_cli.terminal import console
from headway_cli.top_view import Away, Screen, Seen, top_view

PERIOD_S = REDRAW_S = 1.0
LINES_ONCE = 30
KEPT = 300
"""Decisions that are looked at."""
AGAIN = 5
"""Decisions read again with new ones: their replicas may have come meanwhile."""
HINT = "q ends it"
QUIT = "qQ\x04"


def top(
    *,
    url: UrlOption = None,
    api_key_env: KeyVariable = KEY_VARIABLE,
    once: Annotated[
        bool, switch("--once", "Print it once, as where the output is no terminal, or a dumb one.")
    ] = False,
) -> None:
    """Watch a running deployment in this terminal: verdict, pools, latencies, decisions; q ends it."""
    watcher = Watcher(client(url, api_key_env))
    seen = watcher.look()
    out = console()
    # A dumb terminal cannot go back to its first line.
    if once or not out.is_terminal or out.is_dumb_terminal:
        out.print(top_view(seen, watcher.url, Screen(out.width, LINES_ONCE)))
        return
    threading.Thread(target=watcher.run, daemon=True).start()
    try:
        with _keys() as pressed, Live(console=out, screen=True, auto_refresh=False) as live:
            while True:
                screen = Screen(out.width, out.height)
                view = top_view(watcher.seen or seen, watcher.url, screen, watcher.away, HINT)
                live.update(view, refresh=True)
                if set(pressed(REDRAW_S)) & set(QUIT):
                    return
    except KeyboardInterrupt:
        return


class Watcher:
    """The newest that a server said, and since when it says nothing."""

    def __init__(self, server: ControlClient) -> None:
        self._server, self._log = server, DecisionLog(server)
        self.seen: Seen | None = None
        self.away: Away | None = None

    @property
    def url(self) -> str:
        """The server's address."""
        return self._server.url

    def run(self) -> None:
        """Look again and again, for ever."""
        while True:
            time.sleep(PERIOD_S)
            try:
                self.look()
            except CliError as error:
                since_s = time.time() if self.away is None else self.away.since_s
                self.away = Away(since_s, str(error))

    def look(self) -> Seen:
        """Ask once; CliError where nothing that can be read is answered."""
        status = read_status(self._server)
        known = () if self.seen is None else self.seen.records
        last = status.last_decision
        if last is None:
            known = ()
        elif not known or (last.id, last.reached_at) != (known[-1].id, known[-1].reached_at):
            known = self._newer(known, last.id)
        self.seen, self.away = Seen(status, known, time.time()), None
        return self.seen

    def _newer(self, known: Sequence[DecisionRecord], newest: int) -> Sequence[DecisionRecord]:
        """The decisions up to now; all anew where their numbers began anew."""
        if not known or newest < known[-1].id:
            return [self._log.parse(document) for document in self._log.last(KEPT)]
        after = known[-1].id - AGAIN
        found = [self._log.parse(document) for document in self._log.after(after, KEPT)]
        return [*(one for one in known if one.id <= after), *found][-KEPT:]


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """A function that waits so many seconds for keys; where standard input is no terminal there are none."""
    if not sys.stdin.isatty():
        yield _no_keys
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def pressed(timeout_s: float) -> str:
        if not select.select([terminal], [], [], timeout_s)[0]:
            return ""
        # Nothing to read although there is something: the terminal was closed.
        return os.read(terminal, 64).decode(errors="replace") or "q"

    tty.setcbreak(terminal)
    try:
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _no_keys(timeout_s: float) -> str:
    time.sleep(timeout_s)
    return ""
