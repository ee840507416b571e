"""The library at arm's length: imported late, kept silent, its errors turned into ours.

It logs, warns and prints freely, and some of its imports change the process's warning filters; `quiet`
undoes all of it.
"""

import contextlib
import importlib
import importlib.metadata
import io
import logging
import re
import warnings
from collections.abc import Iterator
from typing import Any

from headway.profiling.errors import ExtraNotInstalledError, NotMeasuredError

DISTRIBUTION = "aiconfigurator"
CORE = "aiconfigurator_core"


def sdk(module: str) -> Any:  # noqa: ANN401 - a module without types
    """Import `module` of the SDK. Raises `ExtraNotInstalledError`."""
    return _import(f"{CORE}.sdk.{module}")


def version() -> str:
    """The installed version. Raises `ExtraNotInstalledError`."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError as error:
        raise _not_installed() from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the library's log lines, warnings and prints away from the user's terminal."""
    loggers = [logging.getLogger(name) for name in (DISTRIBUTION, CORE)]
    propagate = [logger.propagate for logger in loggers]
    sink, handler = io.StringIO(), logging.NullHandler()
    for logger in loggers:
        logger.propagate = False
        logger.addHandler(handler)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, before in zip(loggers, propagate, strict=True):
            logger.propagate = before
            logger.removeHandler(handler)


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn what the library raises for what it cannot model into a one-line `NotMeasuredError`."""
    errors = sdk("errors")
    expected = (
        errors.PerfDataNotAvailableError,
        errors.EmpiricalNotImplementedError,
        errors.SolNotImplementedError,
        NotImplementedError,
        ValueError,
        AssertionError,
        KeyError,
    )
    try:
        yield
    except expected as error:
        raise NotMeasuredError(f"{what}: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    """The library's message without line breaks and without paths of the installation."""
    text = f"{error} is missing" if isinstance(error, KeyError) else str(error)
    return re.sub(r" (at|in|from) /\S+", "", " ".join(text.split()))


def _import(name: str) -> Any:  # noqa: ANN401
    version()
    try:
        with quiet():
            return importlib.import_module(name)
    except ImportError as error:
        raise _not_installed() from error


def _not_installed() -> ExtraNotInstalledError:
    return ExtraNotInstalledError(
        "AI Configurator is not installed, which estimates need: pip install 'headway[estimate]'"
    )
