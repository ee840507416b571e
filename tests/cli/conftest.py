"""The verbs wait for servers as long as it takes."""

import pytest

from tests.patience import PATIENCE_S, patient_clients


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    patient_clients(monkeypatch)
    monkeypatch.setattr("headway_cli.cluster.REACHED_WITHIN_S", PATIENCE_S)
