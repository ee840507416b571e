"""The verbs wait for servers as long as it takes."""

import pytest

from tests.patience import patient_clients


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    patient_clients(monkeypatch)
