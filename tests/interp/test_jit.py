"""Compiled code never outlives its sources."""

import os
from itertools import count

import pytest

from interp.jit import drop_stale_cache

NAMES = count()


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A package of time 100 on another of time 50, without compiled code; each test has its own names."""
    monkeypatch.syspath_prepend(tmp_path)
    number = next(NAMES)
    names = f"upper_{number}", f"lower_{number}"
    for name, modified_s in zip(names, (100, 50), strict=True):
        (tmp_path / name / "__pycache__").mkdir(parents=True)
        for file in ("__init__.py", "kernel.py"):
            written(tmp_path / name / file, modified_s)
    return [tmp_path / name for name in names]


def written(path, modified_s):
    path.write_text("")
    os.utime(path, (modified_s, modified_s))
    return path


def cached(package, name, modified_s):
    return written(package / "__pycache__" / name, modified_s)


def drop(packages) -> bool:
    drop_stale_cache.cache_clear()
    return drop_stale_cache(*(package.name for package in packages))


def test_an_empty_cache_is_due(packages):
    assert drop(packages)


def test_newer_code_is_kept(packages):
    entry = cached(packages[0], "kernel.run-1.nbi", 101)
    assert not drop(packages)
    assert entry.exists()


def test_one_older_entry_empties_the_cache_and_nothing_else(packages):
    entries = [cached(packages[0], "kernel.run-1.nbi", 99), cached(packages[0], "kernel.run-1.1.nbc", 101)]
    others = [cached(packages[0], "kernel.pyc", 1), cached(packages[1], "kernel.run-1.nbi", 99)]
    assert drop(packages)
    assert not any(entry.exists() for entry in entries)
    assert all(other.exists() for other in others)


def test_code_is_dropped_where_what_it_is_built_on_is_newer(packages):
    entries = [cached(package, "kernel.run-1.nbi", 120) for package in packages]
    assert not drop(packages)
    written(packages[1] / "kernel.py", 150)
    assert drop(packages)
    assert not any(entry.exists() for entry in entries)


def test_a_module_is_looked_at_alone(packages):
    package = packages[0]
    written(package / "router.py", 200)
    entry, other = cached(package, "kernel.run-1.nbi", 150), cached(package, "router.route-1.nbi", 150)
    drop_stale_cache.cache_clear()
    assert not drop_stale_cache(f"{package.name}.kernel", packages[1].name)
    assert entry.exists()
    written(package / "kernel.py", 160)
    drop_stale_cache.cache_clear()
    assert drop_stale_cache(f"{package.name}.kernel", packages[1].name)
    assert not entry.exists()
    assert other.exists()


def test_a_file_that_another_process_removes_meanwhile_does_no_harm(packages):
    """A link to nothing stands for a file that is listed and then gone."""
    (packages[0] / "__pycache__" / "gone.f-1.nbi").symlink_to(packages[0] / "nothing")
    cached(packages[0], "kernel.run-1.nbi", 101)
    assert drop(packages)
