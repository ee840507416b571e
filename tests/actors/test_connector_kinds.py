"""Connectors by name: those built in, and one that an installed package brings."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.connectors import connector_kind, connector_problems, make_connector
from headway.config import CONNECTORS, ConfigError, HeadwayConfig, json_schema, load_config
from headway.planning import Role
from tests.installed_package import installed_package

PACKAGE = """
from actors.connectors.protocol import Action, ConnectorKind, PoolCounts, Ready
from headway.config.base import Settings


class NomadOptions(Settings):
    address: str
    job: str = "llm"


class NomadConnector:
    def __init__(self, config, application):
        self._options = NomadOptions.model_validate(config.connector.options)
        self._counts = {}

    async def set_targets(self, targets, reasons):
        self._counts |= targets
        return Action(status="sent", detail={"address": self._options.address})

    async def state(self):
        return {
            role: PoolCounts(desired=n, starting=0, ready=n, draining=0) for role, n in self._counts.items()
        }

    async def ready(self):
        return Ready(ok=True)


def problems(config):
    return ["pools.mixed: Nomad jobs have one group each"] if "mixed" in config.pools else []


NOMAD = ConnectorKind(make=NomadConnector, options=NomadOptions, problems=problems)
"""


ENTRY_POINTS = """[headway.connectors]
nomad = headway_nomad:NOMAD
bare = headway_nomad:NomadConnector
gone = headway_nomad:GONE
"""


@pytest.fixture
def _nomad(tmp_path: Path) -> Iterator[None]:
    with installed_package(tmp_path, "headway_nomad", PACKAGE, ENTRY_POINTS):
        yield


def configured(kind: str, **options: object) -> HeadwayConfig:
    config = load_config(None, {"connector.kind": kind, "connector.options": options})
    # As the actors get it.
    return HeadwayConfig.model_validate_json(config.model_dump_json())


def test_the_built_in_ones_say_what_they_need():
    kinds = {name: connector_kind(configured(name)) for name in CONNECTORS.builtin}
    assert [name for name, kind in kinds.items() if kind.decision_ids] == ["virtual"]
    assert connector_problems(configured("ray_serve")) == []
    assert connector_problems(configured("virtual")) == []
    (missing,) = connector_problems(configured("kubernetes"))
    assert "connector.kubernetes.name" in missing


def test_options_that_a_connector_does_not_have_are_refused():
    assert connector_problems(configured("ray_serve", address="here")) == [
        "connector.options.address: unknown key; none is known here"
    ]


def test_an_unknown_kind_is_one_line_with_the_known_ones():
    with pytest.raises(
        ConfigError, match=r"kind: input should be 'kubernetes', 'ray_serve' or 'virtual', not 'n"
    ):
        configured("nomad")


@pytest.mark.usefixtures("_nomad")
def test_an_installed_package_brings_a_connector_with_settings_of_its_own():
    config = configured("nomad", address="http://nomad:4646")
    assert connector_problems(config) == []
    connector = make_connector(config, "app")
    sent = asyncio.run(connector.set_targets({Role.PREFILL: 2}, {}))
    assert sent.detail == {"address": "http://nomad:4646"}
    assert asyncio.run(connector.state())[Role.PREFILL].ready == 2
    assert "nomad" in str(json_schema()["$defs"]["ConnectorSettings"]["properties"]["kind"])


@pytest.mark.usefixtures("_nomad")
def test_its_own_settings_and_needs_are_checked_before_anything_starts():
    assert connector_problems(configured("nomad")) == ["connector.options.address: field required"]
    assert connector_problems(configured("nomad", address="x", jab="y")) == [
        "connector.options.jab: unknown key; did you mean 'job'?"
    ]
    mixed = load_config(None, {"pools": {"mixed": {}}, "connector": {"kind": "nomad", "options": {}}})
    assert connector_problems(mixed)[1:] == ["pools.mixed: Nomad jobs have one group each"]


@pytest.mark.usefixtures("_nomad")
@pytest.mark.parametrize(("name", "fault"), [("bare", "no ConnectorKind"), ("gone", "cannot be loaded")])
def test_a_package_without_a_declaration_is_named(name: str, fault: str):
    with pytest.raises(ConfigError, match=f"connector.kind: .*{fault}"):
        make_connector(configured(name), "app")
