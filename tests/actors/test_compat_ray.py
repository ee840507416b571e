"""The private parts of Ray that are used are there; the failure says what is lost without one."""

import importlib
from functools import reduce

import pytest

from actors.compat_ray import PRIVATE


@pytest.mark.parametrize("place", PRIVATE)
def test_the_installed_ray_has_it(place: str) -> None:
    module, _, names = place.partition(":")
    try:
        reduce(getattr, names.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        pytest.fail(f"this Ray has no {place} ({error}); lost: {PRIVATE[place]}")
