"""Extension points: built-in names, names that an installed package brings, and what is wrong with others."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.extensions import ExtensionError, ExtensionPoint
from tests.installed_package import installed_package

POINT = ExtensionPoint("headway.test_shapes", "shape", {"round": "math:pi", "square": "math:sqrt"})


@pytest.fixture
def package(tmp_path: Path) -> Iterator[None]:
    """A package that is installed beside headway, with two entry points, one of them broken."""
    entry_points = (
        "[headway.test_shapes]\nhexagon = shapes_of_others:HEXAGON\nbroken = shapes_of_nobody:X\n"
        "round = shapes_of_others:HEXAGON\n"
    )
    with installed_package(tmp_path, "shapes_of_others", "HEXAGON = 6\n", entry_points):
        yield


def test_built_in_names_are_loaded_when_they_are_used():
    assert POINT.names() == ("round", "square")
    assert POINT.load("square")(9) == 3


@pytest.mark.usefixtures("package")
def test_an_installed_package_adds_a_name():
    assert POINT.names() == ("broken", "hexagon", "round", "square")
    assert "hexagon" in POINT
    assert POINT.load("hexagon") == 6


@pytest.mark.usefixtures("package")
def test_a_built_in_name_cannot_be_taken_over():
    assert POINT.load("round") == pytest.approx(3.14159, abs=1e-5)


@pytest.mark.usefixtures("package")
def test_a_built_in_name_that_is_declared_again_is_mentioned():
    assert POINT.ignored() == ("shape 'round' of shapes_of_others:HEXAGON is ignored: the name is built in",)


@pytest.mark.usefixtures("package")
def test_a_name_that_two_packages_declare_is_refused_when_it_is_used(tmp_path: Path):
    second = tmp_path / "second"
    second.mkdir()
    entry_points = "[headway.test_shapes]\nhexagon = shapes_of_rivals:HEXAGON\nbent = shapes_of_rivals:BENT\n"
    with installed_package(second, "shapes_of_rivals", "BENT = 1\n", entry_points):
        assert POINT.load("bent") == 1
        with pytest.raises(ExtensionError, match=r"^shape 'hexagon' is declared twice, by ") as refused:
            POINT.load("hexagon")
    assert "shapes_of_others:HEXAGON" in str(refused.value)
    assert "shapes_of_rivals:HEXAGON" in str(refused.value)


def test_a_module_that_fails_is_named_with_its_line(tmp_path: Path):
    code = "import math\n\nX = math.no_such_function\n"
    with installed_package(
        tmp_path, "shapes_that_fail", code, "[headway.test_shapes]\nbad = shapes_that_fail:X\n"
    ):
        fault = (
            r"AttributeError: module 'math' has no attribute 'no_such_function' \(shapes_that_fail\.py:3\)$"
        )
        with pytest.raises(ExtensionError, match=fault):
            POINT.load("bad")


@pytest.mark.usefixtures("package")
def test_what_cannot_be_loaded_is_one_line_that_names_it():
    with pytest.raises(ExtensionError, match="unknown shape 'oval'; known: broken, hexagon, round, square"):
        POINT.load("oval")
    with pytest.raises(ExtensionError, match=r"shape 'broken' of shapes_of_nobody:X cannot be loaded: Mod"):
        POINT.load("broken")
