"""Compiled code never outlives its sources."""

import os

import pytest

from headway.simulation.jit import drop_older


@pytest.fixture
def package(tmp_path):
    """A source of time 100 and an empty cache directory."""
    source = tmp_path / "kernel.py"
    source.write_text("")
    os.utime(source, (100, 100))
    (tmp_path / "__pycache__").mkdir()
    return tmp_path


def cached(package, name, modified_s):
    entry = package / "__pycache__" / name
    entry.write_text("")
    os.utime(entry, (modified_s, modified_s))
    return entry


def test_an_empty_cache_is_due(package):
    assert drop_older(package / "__pycache__", [package])


def test_newer_code_is_kept(package):
    entry = cached(package, "run.nbi", 101)
    assert not drop_older(package / "__pycache__", [package])
    assert entry.exists()


def test_one_older_entry_empties_the_cache_and_nothing_else(package):
    entries = [cached(package, "run.nbi", 99), cached(package, "run.1.nbc", 101)]
    other = cached(package, "kernel.pyc", 1)
    assert drop_older(package / "__pycache__", [package])
    assert not any(entry.exists() for entry in entries)
    assert other.exists()


def test_a_file_that_another_process_removes_meanwhile_does_no_harm(package):
    """A link to nothing stands for a file that is listed and then gone."""
    (package / "__pycache__" / "gone.nbi").symlink_to(package / "nothing")
    cached(package, "run.nbi", 101)
    assert drop_older(package / "__pycache__", [package])
