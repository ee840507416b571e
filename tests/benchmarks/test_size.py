"""`python -m benchmarks size`: what is counted, on a small checkout with one of everything."""

import subprocess
from pathlib import Path

import pytest

from benchmarks.size import measure

FILES = {
    "interp/__init__.py": '"""A package."""\n',
    "interp/first.py": "from interp.second import Shape\n\n\nclass Circle(Shape):\n    pass\n",
    "interp/second.py": (
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from interp.first import Circle\n\n\n"
        "class Shape:\n    other: 'Circle'  # why it is here\n"
    ),
    "interp/third.py": "class Shape:\n    pass  # noqa: PIE790\n\n\ndef long():\n" + "    x = 1\n" * 50,
    "actors/__init__.py": "",
    "actors/shapes.py": "import interp.first\n\n\nclass Shape:\n    pass\n",
    "tests/test_nothing.py": "class Shape:\n    pass\n",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (tmp_path / "interp" / "untracked.py").write_text("class Shape:\n    pass\n")
    for command in (["init", "-q"], ["add", *FILES]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    return tmp_path


def test_packages_are_counted_as_git_tracks_them_without_tests(checkout: Path):
    size = measure(checkout)
    assert (size.files["interp"], size.files["actors"], size.files["headway"]) == (4, 2, 0)
    assert size.lines["interp"] == sum(
        text.count("\n") for name, text in FILES.items() if name.startswith("interp/")
    )
    assert "interp/third.py" not in size.small_files
    assert "interp/first.py" in size.small_files


def test_an_import_for_type_checkers_closes_a_circle(checkout: Path):
    assert measure(checkout).circles == [["interp.first", "interp.second"]]


def test_a_class_name_counts_as_repeated_within_one_package_only(checkout: Path):
    assert measure(checkout).repeated_classes == ["Shape: interp.second, interp.third"]


def test_long_functions_are_named_and_marks_for_tools_are_no_comments(checkout: Path):
    size = measure(checkout)
    assert size.long_functions == ["interp/third.py:long 51"]
    assert size.comment_lines == 1
