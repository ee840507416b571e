"""`headway top`: on a real pseudo-terminal, over a control plane that a test writes."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import Any

import pytest
from cli_cases import headway
from control_server import controlling, status
from rich.console import Console

from headway.planning.documents import StatusDocument
from headway.planning.records import DecisionRecord
from headway_cli.top_view import Away, Screen, Seen, top_view
from tests.live.standing import StandingPlane, record, standing
from tests.patience import PATIENCE_S

AT = 1_760_000_000.0
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def records(count: int) -> list[DecisionRecord]:
    return [record(number, AT + 30.0 * number) for number in range(count)]


def screen(seen: Seen, width: int = 80, height: int = 24, away: Away | None = None) -> Sequence[str]:
    out = Console(width=width, file=StringIO())
    out.print(top_view(seen, "http://here:8000", Screen(width, height), away, "q ends it"))
    return out.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_screen_is_never_overrun(width: int) -> None:
    crowd = {"desired": 1000, "starting": 1, "ready": 999, "draining": 0, "max_replicas": 1000}
    pools = {role: status()["pools"]["decode"] | crowd for role in ("prefill", "decode")}
    text = "Burning: 31 % of the requests miss their SLO for 4 min now, 1 % may: " + "and more of it " * 10
    burning = {"state": "burning", "text": text, "well": False}
    seen = Seen(StatusDocument.model_validate(status(pools=pools, verdict=burning)), records(300), AT)
    lines = screen(seen, width)
    assert max(map(len, lines)) <= width
    assert len(lines) <= 24
    assert re.search(r"^prefill +999 +1,000 +1 ", "\n".join(lines), re.M)
    if width > 40:
        assert re.search(r"^\d+-299 ", lines[-2])
        assert "1 to 1,000" in "\n".join(lines)


def test_a_screen_before_the_first_decision() -> None:
    document = status(last_decision=None, measured=None, attainment={"last_interval": None}, pools={})
    lines = screen(Seen(StatusDocument.model_validate(document), [], AT))
    assert "No decision yet" in lines
    assert any(re.match(r"in time +n/a +promised 95 %", line) for line in lines)


def test_a_screen_names_who_is_away_and_which_part_is_ill() -> None:
    ill = status(components={"Planner": {"ok": True}, "Predictor": {"ok": False, "detail": "died"}})
    seen = Seen(StatusDocument.model_validate(ill), records(3), AT)
    lines = "\n".join(screen(seen, away=Away(AT, "http://here: cannot be reached: refused")))
    assert re.search(r"No answer since \d\d:\d\d:\d\d, what stands below is from before: http://here", lines)
    assert "Predictor: died" in lines


def test_once_has_no_escapes_and_needs_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with controlling() as control:
        for flags in ((), ("--once",)):
            ended = headway(capsys, "top", "--url", control.url, *flags)
            assert (ended.code, ended.err) == (0, "")
            assert "\x1b" not in ended.out
            assert re.search(r"^7 +\S+ +5\.2 +96 % +2 +3 → 4 +6\.3 s +decode: more load$", ended.out, re.M)
            assert re.search(r"^in time +96 % +promised 95 %", ended.out, re.M)
    assert control.url in headway(capsys, "top", "--once", "--url", control.url).complaint()


class Terminal:
    """A terminal of 80 by 24 in which a command runs."""

    def __init__(self, process: "subprocess.Popen[bytes]", end: int) -> None:
        self.process, self._end = process, end
        self.text = ""

    def until(self, pattern: str) -> None:
        """Read what is written from now on until it matches."""
        deadline = time.monotonic() + PATIENCE_S
        self.text = ""
        while not re.search(pattern, ESCAPES.sub("", self.text), re.S):
            assert time.monotonic() < deadline, self.text
            if select.select([self._end], [], [], 0.1)[0]:
                self.text += os.read(self._end, 65536).decode(errors="replace")

    def type(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    def settings(self) -> list[Any]:
        return termios.tcgetattr(self._end)


@contextmanager
def terminal(*arguments: str, **environment: str) -> Iterator[Terminal]:
    end, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "headway_cli", *arguments]
    kept = {name: text for name, text in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    with subprocess.Popen(
        command, stdin=inner, stdout=inner, stderr=inner, env={**kept, "TERM": "xterm", **environment},
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            yield Terminal(process, end)
        finally:
            process.kill()
            process.wait()
            os.close(inner)
            os.close(end)


def test_top_outlives_its_server_and_q_ends_it() -> None:
    now_s = time.time()
    plane = StandingPlane([record(number, now_s - 30.0 * (9 - number)) for number in range(10)])
    with standing(plane, replicas=1000) as url, terminal("top", "--url", url) as watched:
        before = watched.settings()
        watched.until(r"Keeping its promise: .*in time +99")
        assert "\x1b[1;32mKeeping" in watched.text
        assert watched.settings() != before
        plane.down = True
        watched.until(r"No answer since .*did\s+not answer within")
        plane.down = False
        plane.records.append(record(10, now_s))
        watched.until(r"\n(10|\d+-10) +\d\d:")
        assert "No answer" not in watched.text.rpartition("as of")[2]
        watched.type("q")
        assert watched.process.wait(PATIENCE_S) == 0
        assert watched.settings() == before


def test_ctrl_c_ends_it_and_no_colour_is_used_where_none_is_wanted() -> None:
    with standing(StandingPlane(records(3))) as url, terminal("top", "--url", url, NO_COLOR="1") as watched:
        before = watched.settings()
        watched.until("q ends it")
        assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", watched.text)
        watched.process.send_signal(signal.SIGINT)
        assert watched.process.wait(PATIENCE_S) == 0
        assert watched.settings() == before


def test_a_dumb_terminal_gets_it_once_in_plain_lines() -> None:
    with standing(StandingPlane(records(3))) as url, terminal("top", "--url", url, TERM="dumb") as watched:
        watched.until("Keeping its promise")
        assert "\x1b" not in watched.text
        assert watched.process.wait(PATIENCE_S) == 0
