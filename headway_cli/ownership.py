"""The process of this user that runs `headway up`: a lock that ends with its holder, and a file about it.

The lock decides whether something is up; a file whose holder has gone means nothing. The file names the
process by id and start time, so that a later process with the same id is never mistaken for it.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from headway.workload import whole_file
from headway_cli.errors import CliError

LOOK_S, RETRY_S = 0.5, 0.02
"""A reader (`is_up`) holds the lock for an instant: taking it is retried that long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The process that is up. `url` is None until the gateway serves; `directory` is its Ray's, `config` its
    file's path, which it has read again `reloads` times; `said` is what came of the last time.
    """

    pid: int
    started: str
    url: str | None = None
    directory: str | None = None
    config: str | None = None
    reloads: int = 0
    said: str = ""


def state_directory() -> Path:
    """The directory for the state of this user's programs (XDG_STATE_HOME)."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "headway"


def log_file() -> Path:
    """The output of a detached `up`."""
    return state_directory() / "up.log"


@contextmanager
def owning() -> Iterator[None]:
    """Be the one that is up; CliError when another process is."""
    with _lock_file() as lock:
        if not _taken(lock):
            raise CliError(already_up(_read()))
        try:
            yield
        finally:
            _file().unlink(missing_ok=True)


def reloaded(said: str) -> None:
    """This process has read its file again."""
    if (owner := _read()) is not None:
        _write(replace(owner, reloads=owner.reloads + 1, said=said))


def announce(url: str | None, directory: Path | None, config: str | None = None) -> None:
    """Describe this process, which holds the lock."""
    pid, place = os.getpid(), None if directory is None else str(directory)
    settings = None if config is None else str(Path(config).absolute())
    _write(Owner(pid=pid, started=start_time(pid) or "", url=url, directory=place, config=settings))


def _write(owner: Owner) -> None:
    with whole_file(_file()) as file:
        file.write(json.dumps(asdict(owner)).encode())


def is_up() -> bool:
    """True while a process holds the lock."""
    with _lock_file() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def current() -> Owner | None:
    """The process that is up, None if there is none; CliError while it has not described itself yet."""
    if not is_up():
        return None
    owner = _read()
    if owner is None or start_time(owner.pid) != owner.started:
        raise CliError(f"another headway up is just beginning or ending; see {state_directory()}")
    return owner


def current_or_none() -> Owner | None:
    """As `current`, None too while the process has not described itself yet."""
    try:
        return current()
    except CliError:
        return None


def running_url() -> str | None:
    """Where this user's `up` serves; None where none is up, or none serves yet."""
    owner = current_or_none() if _file().is_file() else None
    return None if owner is None else owner.url


def already_up(owner: Owner | None) -> str:
    """One line on what is up."""
    if owner is None:
        return "already up, or starting; headway down ends it"
    where = f" at {owner.url}" if owner.url else ", still starting"
    return f"already up (process {owner.pid}){where}; headway down ends it"


def start_time(pid: int) -> str | None:
    """When a process began, in clock ticks since boot; None if there is no such process.

    Where there is no /proc the id alone has to do: the answer is then the same for every living process.
    """
    if not Path("/proc/self/stat").exists():
        return "unknown" if _alive(pid) else None
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    state, *fields = text.rpartition(")")[2].split()
    return None if state == "Z" else fields[18]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _taken(lock: int) -> bool:
    until = time.monotonic() + LOOK_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(RETRY_S)
        else:
            return True


@contextmanager
def _lock_file() -> Iterator[int]:
    directory = state_directory()
    directory.mkdir(parents=True, exist_ok=True)
    lock = os.open(directory / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield lock
    finally:
        os.close(lock)


def _file() -> Path:
    return state_directory() / "up.json"


def _read() -> Owner | None:
    try:
        return Owner(**json.loads(_file().read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
