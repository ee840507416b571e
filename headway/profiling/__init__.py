"""Profiles: measured on any engine, corrected by traffic, compared, chosen from, imported.

`sweep` measures an engine and makes the tables that `interp` reads. `comparison` holds profiles against each
other and chooses tensor-parallel sizes. `fleet_probing` profiles a fleet that serves, within minutes: by what
its traffic shows of the replicas (`fleet_replica`), and by careful probes where little is known, while no SLO
is at risk. `foreign_profiles` reads those of other systems. Profiles without a GPU are estimated by
`headway_studies.estimator`; traffic corrects them (`headway.engine.refinement`).

    ProfilingError                  one clear line; the command prints it and exits 2
    ├── RequestError                a field of a request that makes no sense
    ├── OutputExistsError           a directory to be written is there already and is not empty
    ├── TargetError                 an engine that is measured does not answer as it should
    ├── UnmeasurableError           this engine cannot do what one point asks for; others may be measured
    ├── MeasurementsError           points on disk that cannot be read, or belong to another sweep
    ├── IncompleteError             too few points for a profile
    ├── ForeignProfileError         an imported file is not what it says
    └── errors of `headway_studies.estimator`
"""

from pathlib import Path

from headway.engine.observed_latency import Phase as Phase


class ProfilingError(Exception):
    """Base of every error that making a profile raises; its text is one line for the user."""


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


def refuse_what_exists(place: Path, *, overwrite: bool | None = None) -> None:
    """OutputExistsError for a file, and for a directory with something in it unless `overwrite`.

    `overwrite` is None where no flag lets a command replace what is there.
    """
    if place.exists() and not place.is_dir():
        raise OutputExistsError(f"--output: {place} exists and is not a directory")
    if not overwrite and place.is_dir() and any(place.iterdir()):
        how = "" if overwrite is None else "; --overwrite replaces it"
        raise OutputExistsError(f"--output: {place} exists and is not empty{how}")
