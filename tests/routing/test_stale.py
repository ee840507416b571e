"""Compiled code never outlives its sources."""

import os

from headway.routing.stale import COMPILED, _drop_older


def test_older_code_is_dropped_and_newer_kept(tmp_path) -> None:
    for name in ("forecast.forecast-1.py311.nbi", "books.enter-1.py311.1.nbc"):
        (tmp_path / name).write_bytes(b"")
        os.utime(tmp_path / name, (100.0, 100.0))
    other = tmp_path / "elsewhere.f-1.py311.nbi"
    other.write_bytes(b"")
    assert not _drop_older(tmp_path, 50.0)
    assert len(list(tmp_path.iterdir())) == 3
    assert _drop_older(tmp_path, 150.0)
    assert list(tmp_path.iterdir()) == [other]


def test_every_module_with_compiled_functions_is_watched() -> None:
    from pathlib import Path

    import headway.routing

    package = Path(headway.routing.__file__).parent
    compiled = {path.stem for path in package.rglob("*.py") if "@compiled" in path.read_text()}
    assert compiled <= set(COMPILED)
