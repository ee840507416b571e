"""No limit of an actor runs out but those that a test is about."""

import pytest

from tests.patience import patient_actors


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    patient_actors(monkeypatch)
