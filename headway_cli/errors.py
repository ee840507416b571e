"""The errors that reach the user as one line instead of a traceback.

CliError(Exception)     a flag or an output path that cannot be used; one line
    CliErrors               several of them, or of other wrong input; a line each
"""

from collections.abc import Sequence


class CliError(Exception):
    """A flag or a path that cannot be used; the text names it."""


class CliErrors(CliError):
    """Several faults of the input, a line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


def is_wrong_input(error: Exception) -> bool:
    """True if the exception means "the input is wrong": the command prints its line and exits 2."""
    # Imported once something is wrong: they load numpy and aiohttp, which `headway --help` has no use for.
    from headway.config import ConfigError
    from headway.loadgen import LoadError
    from headway.planning import PlanningError
    from headway.profiling import ProfilingError
    from headway.routing import RoutingError
    from headway.workload import TraceError
    from interp import InterpError
    from predictors.checks import PredictorError

    wrong = (
        CliError,
        ConfigError,
        InterpError,
        LoadError,
        OSError,
        PlanningError,
        PredictorError,
        ProfilingError,
        RoutingError,
        TraceError,
    )
    return isinstance(error, wrong)
