"""Compiled code never outlives its sources."""

import os
from pathlib import Path

import headway.routing
from headway.routing.stale import COMPILED, drop_stale


def written(path, modified_s):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    os.utime(path, (modified_s, modified_s))
    return path


def test_older_code_is_dropped_and_newer_kept(tmp_path) -> None:
    package, interpolation = tmp_path / "routing", tmp_path / "interp"
    source = written(interpolation / "kernels.py", 50.0)
    names = ("forecast.forecast-1.py311.nbi", "table.enter-1.py311.1.nbc", "elsewhere.f-1.py311.nbi")
    cached = [written(package / "__pycache__" / name, 100.0) for name in names]
    assert not drop_stale(package, interpolation)
    assert all(entry.exists() for entry in cached)
    os.utime(source, (150.0, 150.0))
    assert drop_stale(package, interpolation)
    assert [entry.exists() for entry in cached] == [False, False, True]


def test_every_module_with_compiled_functions_is_watched() -> None:
    package = Path(headway.routing.__file__).parent
    compiled = {
        str(path.relative_to(package).with_suffix(""))
        for path in package.rglob("*.py")
        if "@compiled" in path.read_text()
    }
    assert compiled <= set(COMPILED)
