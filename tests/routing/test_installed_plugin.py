"""Scheduling plugins of an installed package: a compiled scorer, and a filter that goes by predictions."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.config import Role
from headway.routing import ReplicaUpdate, RequestSlo, RoutingError, ShedReason
from tests.installed_package import installed_package
from tests.routing.routers import placed, request, router

PACKAGE = '''
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from headway.routing.context import Refusal
from headway.routing.forecast import ForecastRow
from headway.routing.types import ShedReason
from interp.jit import compiled


@dataclass(frozen=True, kw_only=True)
class HighestSlot:
    """A compiled scorer with a parameter."""

    sign: float = 1.0

    def score(self, context):
        return by_slot(context.slots, self.sign)


@compiled
def by_slot(slots, sign):
    out = np.empty(len(slots))
    for place in range(len(slots)):
        out[place] = 0.5 + sign * slots[place] / 1000.0
    return out


@dataclass(frozen=True, kw_only=True)
class QuickEnough:
    """A filter that goes by predictions."""

    uses_predictions: ClassVar[bool] = True
    records_outcomes: ClassVar[bool] = True

    def keep(self, context):
        return context.forecast[ForecastRow.TTFT_S] <= context.record.slo.ttft_s

    def refusal(self, context):
        return Refusal(reason=ShedReason.NO_HEADROOM, explain=lambda: "too slow", hopeful_until_s=-1.0)


class NotADataclass:
    def score(self, context):
        return np.ones(len(context.slots))
'''
ENTRY_POINTS = """[headway.routing_plugins]
highest-slot = plugins_of_others:HighestSlot
quick-enough = plugins_of_others:QuickEnough
no-dataclass = plugins_of_others:NotADataclass
missing = plugins_of_others:Missing
random = plugins_of_others:HighestSlot
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path) -> Iterator[None]:
    with installed_package(tmp_path, "plugins_of_others", PACKAGE, ENTRY_POINTS):
        yield


def using(*names: str, **plugins: Any) -> dict[str, Any]:
    """The settings of a profile "own" of these plugins."""
    profile = {"name": "own", "plugins": [{"pluginRef": name} for name in names]}
    given = [{"type": kind, "parameters": parameters} for kind, parameters in plugins.items()]
    return {"scheduling_profiles": [profile], "plugins": given}


@pytest.mark.parametrize(("sign", "chosen"), [(1.0, "mixed-2"), (-1.0, "mixed-0")])
def test_a_compiled_scorer_with_its_parameter(sign: float, chosen: str) -> None:
    made = router("own", count=3, **using("highest-slot", **{"highest-slot": {"sign": sign}}))
    slots = {name: made._fleet.get(name).slot for name in ("mixed-0", "mixed-1", "mixed-2")}
    best = max(slots, key=lambda name: sign * slots[name])
    assert placed(made.submit(0.0, request())).decode_replica == best
    assert best == chosen


def test_a_plugin_that_predicts_is_asked_about_predictions_and_its_outcomes_are_learnt() -> None:
    made = router("own", count=1, **using("quick-enough", "least-load"))
    placement = placed(made.submit(0.0, request("a", slo=RequestSlo(ttft_s=5.0))))
    assert placement.predicted_ttft_s is not None
    shed = made.submit(0.0, request("b", slo=RequestSlo(ttft_s=1e-6))).sheds
    assert [each.reason for each in shed] == [ShedReason.NO_HEADROOM]
    made.first_token(1.0, "a")
    made.complete(2.0, "a", 50)
    assert len(made.take_samples()) == 1
    unsaid = placed(made.submit(3.0, request("c", arrival_s=3.0)))
    assert unsaid.predicted_ttft_s is not None, "without an SLO it is held to the deployment's"


def test_a_built_in_name_cannot_be_taken_over() -> None:
    made = router("random", count=1)
    made.replica_changed(0.0, ReplicaUpdate(replica="other", role=Role.MIXED))
    drawn = {placed(made.submit(0.0, request(f"r{number}"))).decode_replica for number in range(20)}
    assert drawn == {"mixed-0", "other"}


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        (using("no-dataclass"), "routing.scheduling_profiles.own: plugin 'no-dataclass' of"),
        (using("missing"), "routing.scheduling_profiles.own: plugin 'missing' of plugins_of_others:Missing"),
        (using("highest-slot", **{"highest-slot": {"size": 1}}), "highest-slot has no 'size'; known: sign"),
        (using("nowhere"), "no plugin 'nowhere'; known: bin-pack, capacity-filter, highest-slot"),
    ],
)
def test_a_fault_is_one_line_that_names_the_place(settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(RoutingError) as raised:
        router("own", **settings)
    assert fault in str(raised.value)
    assert "\n" not in str(raised.value)
