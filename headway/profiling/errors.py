"""What can go wrong when a profile is made.

::

    ProfilingError                  one clear line; the command prints it and exits 2
    ├── ExtraNotInstalledError      the optional library behind `headway estimate` is missing
    ├── UnknownNameError            a model, system, backend or quantisation nobody knows; lists the known
    ├── RequestError                a field of the request that makes no sense
    ├── OutputExistsError           a directory to be written is there already and is not empty
    ├── TargetError                 an engine that is measured does not answer as it should
    ├── UnmeasurableError           this engine cannot do what one point asks for; others may be measured
    ├── MeasurementsError           points on disk that cannot be read, or answer another question
    ├── IncompleteError             too few points for a profile
    ├── ForeignProfileError         what should be imported is not what it says
    └── EstimateError               this tensor-parallel size cannot be estimated; others may
        ├── DoesNotFitError         the weights leave no room for a KV cache
        └── NotMeasuredError        the database has no measurements for a part of the model
"""


class ProfilingError(Exception):
    """Base of every error that making a profile raises; its text is one line for the user."""


class ExtraNotInstalledError(ProfilingError):
    """The optional dependency is missing; the text says how to install it."""


class UnknownNameError(ProfilingError):
    """A name that the estimator does not know; the text lists those that it does."""


class RequestError(ProfilingError):
    """A request that names an impossible value; the text names the field."""


class OutputExistsError(ProfilingError):
    """A profile directory that would be overwritten."""


class TargetError(ProfilingError):
    """An engine under measurement that fails, or answers with something else than tokens."""


class UnmeasurableError(ProfilingError):
    """A point that this engine cannot do: too long, or more requests than it runs at once."""


class MeasurementsError(ProfilingError):
    """Measured points on disk that cannot be read, or that belong to another question."""


class IncompleteError(ProfilingError):
    """Too few measured points for a profile."""


class ForeignProfileError(ProfilingError):
    """A file of another system that is not what it says; names file and key."""


class EstimateError(ProfilingError):
    """One tensor-parallel size that has no estimate, and why."""


class DoesNotFitError(EstimateError):
    """The model leaves no memory for a KV cache."""


class NotMeasuredError(EstimateError):
    """The database lacks something that the model needs."""
