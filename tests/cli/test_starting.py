"""`headway up --address`: what does not come up does not stay on the cluster of somebody else."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headway.config import load_config
from headway_cli import up as starting
from headway_cli.cluster import Cluster
from headway_cli.deployment import AlreadyThere, Deployed
from headway_cli.errors import CliError


@pytest.fixture
def deleted(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """One entry for each time that the application was deleted."""
    times: list[bool] = []

    @contextmanager
    def joined(address: str | None) -> Iterator[Cluster]:
        yield Cluster(address=address or "")

    def delete() -> bool:
        times.append(True)
        return True

    monkeypatch.setattr(starting, "cluster", joined)
    monkeypatch.setattr(starting, "delete", delete)
    return times


def up(monkeypatch: pytest.MonkeyPatch, outcome: BaseException | None, *, stay: bool) -> None:
    def deploy(*_: object) -> Deployed:
        if outcome is not None:
            raise outcome
        return Deployed(url="http://127.0.0.1:1")

    monkeypatch.setattr(starting, "deploy", deploy)
    starting.stay_on_cluster(load_config(None), "auto", lambda _: None, stay=stay)


@pytest.mark.parametrize("stay", [True, False])
@pytest.mark.parametrize("fault", [CliError("not ready after 300 s"), KeyboardInterrupt(), SystemExit(143)])
def test_what_does_not_come_up_is_deleted(
    fault: BaseException, stay: bool, deleted: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(type(fault)):
        up(monkeypatch, fault, stay=stay)
    assert len(deleted) == 1


def test_the_application_of_somebody_else_is_not(
    deleted: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AlreadyThere):
        up(monkeypatch, AlreadyThere("already on this cluster"), stay=True)
    assert deleted == []


def test_detached_it_stays(deleted: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    up(monkeypatch, None, stay=False)
    assert deleted == []
