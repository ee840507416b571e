"""Scheduling plugins of an installed package: a compiled scorer, and a filter that goes by predictions."""

import logging
import pickle
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.config import Role
from headway.config.routing import RoutingSettings
from headway.routing import ReplicaUpdate, RequestSlo, RoutingError, ShedReason
from headway.routing.factory import make_pipelines
from tests.installed_package import installed_package
from tests.routing.routers import placed, request, router

PACKAGE = '''
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from headway.routing.decide.context import Refusal
from headway.routing.predict.forecast import ForecastRow
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


@dataclass
class Answers:
    """A scorer whose answers are those of ANSWER."""

    def score(self, context):
        return ANSWER["score"](context)


@dataclass
class Marks:
    def keep(self, context):
        return ANSWER["keep"](context)

    def refusal(self, context):
        return ANSWER["refusal"](context)


@dataclass
class Positions:
    def pick(self, context, scores, generator):
        return ANSWER["pick"](context)


@dataclass
class Idle:
    level: int = 1

    def __post_init__(self):
        if self.level < 0:
            raise ValueError("level is below 0")
        self.part = 1 / self.level


@dataclass
class HalfAFilter:
    def keep(self, context):
        return None


ANSWER = {}


class NotADataclass:
    def score(self, context):
        return np.ones(len(context.slots))
'''
ENTRY_POINTS = """[headway.routing_plugins]
highest-slot = plugins_of_others:HighestSlot
quick-enough = plugins_of_others:QuickEnough
no-dataclass = plugins_of_others:NotADataclass
missing = plugins_of_others:Missing
answers = plugins_of_others:Answers
marks = plugins_of_others:Marks
positions = plugins_of_others:Positions
idle = plugins_of_others:Idle
half-a-filter = plugins_of_others:HalfAFilter
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
    assert placed(made.submit(0.0, request())).decode_replica == chosen


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
        (
            using("no-dataclass"),
            "own: plugin 'no-dataclass' of plugins_of_others:NotADataclass is not a dataclass",
        ),
        (
            using("idle"),
            "routing: plugin idle: has none of keep, score and pick, so it does nothing",
        ),
        (using("idle", idle={"level": -1}), "routing.plugins.0.parameters: level is below 0"),
        (using("idle", idle={"level": 0}), "routing: plugin idle: cannot be made: ZeroDivisionError: "),
        (using("half-a-filter"), "routing: plugin half-a-filter: keep without refusal: a filter has both"),
        (using("missing"), "routing.scheduling_profiles.own: plugin 'missing' of plugins_of_others:Missing"),
        (using("highest-slot", **{"highest-slot": {"size": 1}}), "highest-slot has no 'size'; known: sign"),
        (
            using("nowhere"),
            "no plugin 'nowhere'; known: answers, bin-pack, capacity-filter, first-max-picker, half-a-filter",
        ),
    ],
)
def test_a_fault_is_one_line_that_names_the_place(settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(RoutingError) as raised:
        router("own", **settings)
    assert fault in str(raised.value)
    assert "\n" not in str(raised.value)


def fails(_: Any) -> None:
    raise KeyError("no\nsuch")


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("answers", {"score": lambda context: np.ones(2)}, "2 scores for 3 candidates"),
    ("answers", {"score": lambda context: 1.0}, "no list of scores for 3 candidates"),
    ("answers", {"score": lambda context: np.ones((3, 1))}, "3 x 1 scores for 3 candidates"),
    ("answers", {"score": lambda context: [1.0, np.nan, 1.0]}, "a score of nan, not a number from 0 to 1"),
    ("answers", {"score": lambda context: [1.0, np.inf, 1.0]}, "a score of inf, not a number from 0 to 1"),
    ("answers", {"score": lambda context: [1.0, -2.0, 1.0]}, "a score of -2, not a number from 0 to 1"),
    ("answers", {"score": lambda context: None}, "score returned None, not numbers"),
    ("answers", {"score": fails}, "score raised KeyError: 'no\\nsuch'"),
    ("marks", {"keep": lambda context: np.ones(2, dtype=bool)}, "keep: 2 marks for 3 candidates"),
    ("marks", {"keep": lambda context: [0.0, 1.0, 1.0]}, "keep returned list, not booleans"),
    (
        "marks",
        {"keep": lambda context: np.zeros(3, dtype=bool), "refusal": lambda context: None},
        "refusal returned None, not a Refusal",
    ),
    ("positions", {"pick": lambda context: 3}, "picked position 3 of 3 candidates, which count from 0"),
    ("positions", {"pick": lambda context: -1}, "picked position -1 of 3 candidates, which count from 0"),
    ("positions", {"pick": lambda context: 0.5}, "pick returned float, not a position"),
]


@pytest.mark.parametrize(("name", "answer", "fault"), WRONG)
def test_a_wrong_answer_names_the_plugin(
    name: str, answer: dict[str, Callable[[Any], Any]], fault: str
) -> None:
    made = router("own", count=3, **using(name))
    import_module("plugins_of_others").ANSWER.update(answer)
    with pytest.raises(RoutingError) as raised:
        made.submit(0.0, request())
    assert str(raised.value) == f"routing: plugin {name}: {fault}"
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_right_answers_of_other_types_will_do() -> None:
    answers = {
        "score": lambda context: [0, 1],
        "keep": lambda context: [True, True, False],
        "pick": lambda context: np.int64(1),
    }
    made = router("own", count=3, **using("marks", "answers", "positions"))
    import_module("plugins_of_others").ANSWER.update(answers)
    assert placed(made.submit(0.0, request())).decode_replica == "mixed-1"


def test_live_a_request_whose_plugin_fails_is_placed_by_least_load(caplog: pytest.LogCaptureFixture) -> None:
    made = router("own", count=3, live=True, **using("answers"))
    import_module("plugins_of_others").ANSWER["score"] = lambda context: np.ones(2)
    with caplog.at_level(logging.ERROR):
        placements = [placed(made.submit(0.0, request(f"r{number}"))) for number in range(3)]
    assert {each.decode_replica for each in placements} == {"mixed-0", "mixed-1", "mixed-2"}
    assert {each.profile for each in placements} == {"least_load"}
    assert made.metrics()["fallbacks"] == {("plugin_fault",): 3.0}
    assert [record.getMessage() for record in caplog.records] == [
        "routing: plugin answers: 2 scores for 3 candidates; least load places instead; "
        "its further faults are only counted"
    ]


def test_built_in_plugins_are_not_wrapped() -> None:
    for pipeline in make_pipelines(RoutingSettings()).values():
        for plugin in (*pipeline.filters, *(scorer for scorer, _ in pipeline.scorers), pipeline.picker):
            assert type(plugin).__module__.startswith("headway.")
