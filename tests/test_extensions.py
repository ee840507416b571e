"""Extension points: built-in names, names that an installed package brings, and what is wrong with others."""

import sys
from pathlib import Path

import pytest

from headway import extensions
from headway.extensions import ExtensionError, ExtensionPoint

POINT = ExtensionPoint("headway.test_shapes", "shape", {"round": "math:pi", "square": "math:sqrt"})


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A package that is installed beside headway, with two entry points, one of them broken."""
    (tmp_path / "shapes_of_others.py").write_text("HEXAGON = 6\n")
    info = tmp_path / "shapes_of_others-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shapes-of-others\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[headway.test_shapes]\nhexagon = shapes_of_others:HEXAGON\nbroken = shapes_of_nobody:X\n"
        "round = shapes_of_others:HEXAGON\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    extensions._installed.cache_clear()
    yield
    extensions._installed.cache_clear()
    sys.modules.pop("shapes_of_others", None)


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
def test_what_cannot_be_loaded_is_one_line_that_names_it():
    with pytest.raises(ExtensionError, match="unknown shape 'oval'; known: broken, hexagon, round, square"):
        POINT.load("oval")
    with pytest.raises(ExtensionError, match=r"shape 'broken' of shapes_of_nobody:X cannot be loaded: Mod"):
        POINT.load("broken")
