"""The end of an application, which lasts as long as what it has begun."""

import pytest
from ray import serve

from actors import control_plane
from headway_cli import deployment


def test_what_has_begun_is_waited_for_however_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Serve only this is doubled: streams of more than the minute that its own `delete` waits."""
    looks, deleted, stopped = [*[True] * 1000, False], [], []

    def delete(name: str, _blocking: bool = True) -> None:
        assert not _blocking
        deleted.append(name)

    monkeypatch.setattr(serve, "delete", delete)
    monkeypatch.setattr(deployment, "exists", lambda name: looks.pop(0))
    monkeypatch.setattr(deployment.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(
        control_plane, "stop", lambda *, application: stopped.append((application, len(looks)))
    )
    assert deployment.delete_one("chat")
    assert deleted == ["chat"]
    assert stopped == [("chat", 0)]
