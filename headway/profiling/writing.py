"""Write estimated profiles. Each directory is whole or absent (see `interp.save_profile`).

When one of several cannot be written, those that this call created are removed again.
"""

import pathlib
import shutil
from collections.abc import Iterable

from headway.profiling.errors import OutputExistsError, ProfilingError
from headway.profiling.request import EstimatedProfile, EstimateRequest
from interp import ProfileError, save_profile


def write_estimates(
    profiles: Iterable[EstimatedProfile], directory: pathlib.Path, *, overwrite: bool = False
) -> tuple[pathlib.Path, ...]:
    """Write each profile to `directory`/<its name> and return those directories.

    Raises `OutputExistsError` before anything is written when one of them is there, is not empty and
    `overwrite` is not set; `ProfilingError` when a directory holds something that is no profile, or the file
    system refuses.
    """
    places = {directory / profile.name: profile for profile in profiles}
    _refuse(places, overwrite=overwrite)
    created: list[pathlib.Path] = []
    for place, profile in places.items():
        is_new = not place.exists()
        try:
            save_profile(place, profile.prefill, profile.decode, profile.meta)
        except ProfileError as error:
            for written in created:
                shutil.rmtree(written)
            raise ProfilingError(str(error)) from error
        if is_new:
            created.append(place)
    return tuple(places)


def check_output(request: EstimateRequest, directory: pathlib.Path, *, overwrite: bool = False) -> None:
    """Raise `OutputExistsError` where `write_estimates` would; for use before the work of estimating."""
    _refuse((directory / request.directory_name(tp) for tp in request.tps), overwrite=overwrite)


def _refuse(places: Iterable[pathlib.Path], *, overwrite: bool) -> None:
    for place in places:
        if place.exists() and not place.is_dir():
            raise OutputExistsError(f"{place}: exists and is not a directory")
        if not overwrite and place.is_dir() and any(place.iterdir()):
            raise OutputExistsError(f"{place}: exists and is not empty; overwriting was not asked for")
