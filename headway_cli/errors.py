"""The errors that reach the user as one line instead of a traceback.

    CliError(Exception)     a flag or an output path that cannot be used; one line

`USER_ERRORS` are all exceptions that mean "the input is wrong": the command prints the line and exits 2.
"""

from headway.config import ConfigError
from headway.loadgen import LoadError
from headway.planning import PlanningError
from headway.profiling import ProfilingError
from headway.routing import RoutingError
from headway.workload import TraceError
from interp import InterpError
from predictors.checks import PredictorError


class CliError(Exception):
    """A flag or a path that cannot be used; the text names it."""


USER_ERRORS = (
    CliError,
    ConfigError,
    InterpError,
    LoadError,
    PlanningError,
    PredictorError,
    ProfilingError,
    RoutingError,
    TraceError,
)
