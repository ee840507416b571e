"""What a decision says of why it asks for more."""

import numpy as np
import pytest

from headway.planning import Role
from headway.planning.hindsight.causes import causes, rhythm
from headway.planning.hindsight.history import OutcomeHistory
from headway.planning.hindsight.state import PoolMemory
from headway.planning.replay import Requests

BEFORE, NOW = 300, 30


def said(rate=(2.0, 2.0), inputs=(1000.0, 1000.0), outputs=(100.0, 100.0), pace_s=(1.0, 1.0), known_s=0.0):
    """The causes for loads before and in the last half minute, on engines that took so long.

    The first of the intervals that are known ended at `known_s`.
    """
    generator = np.random.default_rng(1)
    columns = []
    for place, (begin, length) in enumerate(((0.0, BEFORE), (BEFORE, NOW))):
        at_s = begin + np.arange(1, round(rate[place] * length) + 1) / rate[place]
        spread = generator.lognormal(-0.02, 0.2, (2, len(at_s)))
        columns.append((at_s, inputs[place] * spread[0], outputs[place] * spread[1]))
    recent = Requests(*(np.concatenate(each) for each in zip(*columns, strict=True)))
    ended_s = np.linspace(known_s, BEFORE + NOW, len(pace_s))
    pools = {Role.DECODE: PoolMemory(outcomes=OutcomeHistory(ended_s=ended_s, pace_s=np.array(pace_s)))}
    return " ".join(causes(recent, pools, BEFORE + NOW, NOW))


def test_what_stays_as_it_was_is_no_cause():
    assert said() == ""


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"rate": (2.0, 6.0)}, "3.0 times as many requests as in the 5 min before."),
        ({"inputs": (1000.0, 2000.0)}, "prompts 2.0 times as long as in the 5 min before."),
        ({"outputs": (100.0, 150.0)}, "answers 1.5 times as long as in the 5 min before."),
        ({"pace_s": (0.5, 1.0, 1.4)}, "Decode takes 1.4 times as long as in the 5 min before."),
    ],
)
def test_each_cause_has_its_figure(changed, words):
    assert words[:3] == said(**changed)[:3]
    assert said(**changed).split()[-4:] == words.split()[-4:]


def test_several_causes_are_one_sentence():
    assert said(rate=(2.0, 4.0), outputs=(100.0, 300.0)).count(".") == 3


def test_less_load_is_no_cause_nor_what_may_be_chance():
    assert said(rate=(6.0, 2.0), inputs=(2000.0, 1000.0), pace_s=(1.4, 1.0)) == ""
    assert said(rate=(2.0, 2.3)) == ""


@pytest.mark.parametrize(("count", "is_said"), [(140, False), (145, True)])
def test_what_came_before_is_as_uncertain_as_what_came_now(count, is_said):
    at_s = np.concatenate([np.linspace(3.0, 300.0, 100), np.linspace(301.0, 600.0, count)])
    recent = Requests(at_s, np.ones(len(at_s)), np.ones(len(at_s)))
    assert bool(list(causes(recent, {}, 600.0, 300.0))) is is_said


def test_nothing_is_said_until_as_long_is_known_as_it_looks_back():
    assert said(outputs=(1.0, 100.0), known_s=1.0) == ""
    assert said(outputs=(1.0, 100.0)) != ""


def test_nothing_is_said_of_a_time_without_requests():
    nothing = Requests(*np.zeros((3, 0)))
    assert list(causes(nothing, {}, 30.0, 30.0)) == []


def test_bursts_have_a_rhythm_from_the_third_on():
    work = np.ones(60)
    work[[9, 10, 29, 30]] = 5.0
    assert rhythm(work, 30.0) == ""
    work[49] = 4.0
    assert rhythm(work, 30.0) == " every 10 min"
    work[58] = 4.0
    assert rhythm(work, 30.0) == " every 4.5 min to 10 min"
    assert rhythm(np.zeros(0), 30.0) == rhythm(np.ones(9), 30.0) == ""
