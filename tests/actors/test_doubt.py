"""One interval in doubt raises the plan at once, and shapes none once a sure one has followed."""

import asyncio
from collections.abc import Collection, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.collector.interval import Health, HealthStatus, Measured
from actors.planning.log import load_memory
from actors.predictor import HISTORY, KIND, LoadHistory, ObservedLoad, begin_models
from actors.stored import encoded, read
from headway.config import HeadwayConfig
from headway.planning import make_policy, policy_settings
from headway.planning.doubt import MOST
from headway.planning.forecasting import LoadForecaster
from headway.planning.synthetic import CountedTraffic, LengthHistogram
from tests.actors.planner_cases import INTERVAL_S, Deployment, ScriptedActors, busy, clock
from tests.actors.planner_cases import settings as configured
from tests.engines.virtual_loop import run as in_virtual_time
from tests.stores import MemoryStore

USUAL = 600.0
POLICIES: Mapping[str, Mapping[str, object]] = {
    "reference": {"planner__policy": "reference", "planner__predictor": "kalman"},
    "headway": {"planner__policy": "headway"},
    "headway with kalman": {"planner__policy": "headway", "planner__headway__predictors": ("kalman",)},
}
NAN = float("nan")
Doubts = Mapping[int, tuple[float, float]]
"""By interval what came by every witness, and by one of them."""


class Learning(ScriptedActors):
    """A steady load, of which some intervals are in doubt, and predictors that learn it."""

    def __init__(self, config: HeadwayConfig, doubts: Doubts, *, counted: bool) -> None:
        super().__init__()
        self.store = MemoryStore()
        self.history, self.models = LoadHistory(self.store, INTERVAL_S), begin_models(config)
        self.doubts, self.counted, self.calibrated, self.number = doubts, counted, 0, 0

    async def collect(self, interval_s, since_s, counts) -> Measured:
        least, requests = self.doubts.get(self.number, (NAN, USUAL))
        doubt = {
            "least_requests": least,
            "health": Health(status=HealthStatus.PARTIAL, detail="two witnesses"),
        }
        lengths = LengthHistogram(bounds=(800.0, 1200.0), counts=(1.0, 1.0), mean=1000.0)
        counted = CountedTraffic(
            start_s=clock() - INTERVAL_S,
            steps=((clock(), requests),),
            input_tokens=lengths,
            output_tokens=LengthHistogram(bounds=(), counts=(1.0,), mean=200.0),
            completed=requests,
        )
        shown = {"load": {}, "counted": counted if self.counted else None}
        doubted = self.number in self.doubts
        self.number += 1
        return busy(requests, **shown, **(doubt if doubted else {}))

    async def forecast(self, observation, tick, interval_s):
        self.history.add(
            ObservedLoad(
                tick=tick,
                requests=observation.requests,
                isl_tokens=observation.isl_tokens,
                osl_tokens=observation.osl_tokens,
                least=observation.least_requests,
            )
        )
        self.models.catch_up(self.history)
        own = self.models.forecaster
        return own.ranged() if isinstance(own, LoadForecaster) else own.forecast()

    async def calibrate(self, observation, engines=()):
        self.calibrated += 1


def begin(policy: str, doubts: Doubts, *, counted: bool = False) -> Deployment:
    most = {"pools__prefill__max_replicas": 64, "pools__decode__max_replicas": 64}
    config = configured(**POLICIES[policy], **most, planner__no_correction=False)
    return Deployment(config=config, actors=Learning(config, doubts, counted=counted))


def plans(
    policy: str, doubts: Doubts, intervals: int, *, counted: bool = False, killed: Collection[int] = ()
) -> list[dict[str, int]]:
    """The targets of each interval; the planner is killed after some of them."""

    async def story() -> list[dict[str, int]]:
        deployment, after = begin(policy, doubts, counted=counted), 0
        await asyncio.sleep(INTERVAL_S / 2)  # decisions are made at whole intervals
        for until in (*killed, intervals):
            await deployment.run_for((until - after) * INTERVAL_S)
            deployment, after = deployment.again(), until
        return [record["targets"] for record in deployment.records()]

    return in_virtual_time(story())


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=4, deadline=None)
@given(
    at=st.integers(6, 20),
    count=st.integers(1, 3),
    least=st.floats(0.1, 1.0),
    most=st.floats(1.0, 3.0, exclude_min=True),
)
def test_under_a_steady_load_nothing_remembers_a_doubt(policy, at, count, least, most) -> None:
    doubts = dict.fromkeys(range(at, at + count), (least * USUAL, most * USUAL))
    known, doubted = plans(policy, {}, at + count + 8), plans(policy, doubts, at + count + 8)
    assert doubted[:at] == known[:at]
    assert all(each[role] >= known[at][role] for each in doubted[at : at + count] for role in each)
    # `reference` judges engines by the replicas that stood there: those are as before an interval later.
    later = at + count + (policy == "reference")
    assert doubted[later:] == known[later:]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_doubt_raises_the_plan_at_once_and_is_forgotten_by_a_planner_that_was_killed_too(policy) -> None:
    doubts = dict.fromkeys((8, 9), (USUAL, 2 * USUAL))
    known = plans(policy, {}, 16, counted=True)
    doubted = plans(policy, doubts, 16, counted=True, killed=(9,))
    assert all(doubted[9][role] >= 1.5 * known[9][role] for role in ("prefill", "decode"))
    assert doubted[10:] == known[10:]


def test_a_doubt_before_an_outage_is_forgotten_after_it() -> None:
    """Intervals of which nothing is known make nothing sure, and are in no doubt either."""
    unknown = dict.fromkeys(range(9, 9 + MOST + 2), (NAN, NAN))
    known = plans("headway", unknown, 9 + MOST + 6)
    assert plans("headway", {8: (USUAL, 2 * USUAL), **unknown}, 9 + MOST + 6)[-3:] == known[-3:]


def test_a_doubt_that_lasts_is_what_there_is() -> None:
    lasting = dict.fromkeys(range(6, 6 + MOST + 1), (USUAL, 2 * USUAL))
    doubted = plans("headway", lasting, 6 + MOST + 4)
    assert all(doubted[-1][role] > each for role, each in plans("headway", {}, 6)[-1].items())


def test_a_peak_of_which_witnesses_differ_keeps_what_all_of_them_saw() -> None:
    known = plans("headway", {8: (NAN, 2 * USUAL)}, 12)
    assert plans("headway", {8: (2 * USUAL, 2.5 * USUAL)}, 12)[9:] == known[9:]


def test_engines_are_not_judged_by_an_interval_in_doubt() -> None:
    async def story() -> int:
        deployment = begin("reference", {3: (USUAL, 2 * USUAL)})
        await deployment.run_for(6.5 * INTERVAL_S)
        assert len(deployment.records()) == 6
        return deployment.actors.calibrated

    assert in_virtual_time(story()) == 5


def test_histories_keep_what_was_seen_and_older_rows_are_read() -> None:
    store = MemoryStore()
    history = LoadHistory(store, 10.0)
    for tick, least in enumerate((NAN, 4.0, NAN)):
        history.add(ObservedLoad(tick=tick, requests=9.0, isl_tokens=1.0, osl_tokens=1.0, least=least))
    rows = read(store, KIND, f"{HISTORY}{0:012d}", lambda each: each["intervals"])
    assert [len(row) for row in rows] == [5, 6, 5]
    assert [each.least for each in LoadHistory(store, 10.0).since(None)][1] == 4.0


def test_a_memory_of_before_there_was_doubt_is_read() -> None:
    policy = make_policy("static", policy_settings(configured()))
    old = {
        "policy": "static",
        "state": encoded(policy.initial_state()),
        "ended": 1.0,
        "met": 1.0,
        "advice": None,
    }
    memory = load_memory(encoded(old))
    assert (memory.ended, memory.doubted) == (1.0, ())
    assert memory.state_for(policy) == policy.initial_state()
