"""Bounds by the time of the day and the week: which times a window has, and how early a minimum counts."""

import dataclasses
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.config import HeadwayConfig, load_config
from headway.config.engine import DAYS, ScheduleWindow
from headway.planning import (
    Decision,
    Observation,
    PlanningError,
    PolicySettings,
    PoolLimits,
    PoolState,
    Role,
    policy_settings,
)
from headway.planning.deciding import PolicyError, decide
from headway.planning.schedule import contains
from headway.simulation.build import make_plan, make_scenario, run
from headway.workload import open_trace
from tests.planning.planning_cases import OBSERVED

MIXED = Role.MIXED
BERLIN = ZoneInfo("Europe/Berlin")
MONDAY = datetime(2026, 3, 2, tzinfo=UTC)
MINUTES = 24 * 60


def window(begins: str = "00:00", ends: str = "24:00", *days: str, **bounds: int) -> ScheduleWindow:
    return ScheduleWindow.model_validate(
        {"from": begins, "to": ends, "min_replicas": 4, "days": days or DAYS, **bounds}
    )


def text(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


@given(st.integers(0, MINUTES - 1), st.integers(0, MINUTES), st.sets(st.sampled_from(DAYS), min_size=1))
def test_a_window_has_exactly_the_minutes_that_follow_its_beginnings(
    begins: int, ends: int, days: set[str]
) -> None:
    if begins == ends:
        return
    length = (ends - begins) % MINUTES or MINUTES
    starts = [DAYS.index(day) * MINUTES + begins for day in days]
    found = window(text(begins), text(ends), *days)
    week = 7 * MINUTES
    edges = {(start + place) % week for start in starts for place in (-1, 0, length - 1, length)}
    for minute in edges | set(range(0, week, 97)):
        expected = any((minute - start) % week < length for start in starts)
        assert contains(found, MONDAY + timedelta(minutes=minute)) == expected, minute


def test_a_window_past_midnight_is_of_the_day_on_which_it_begins() -> None:
    friday = window("22:00", "06:00", "fri")
    night = datetime(2026, 3, 6, 22, tzinfo=UTC)
    assert [contains(friday, night + timedelta(hours=hours)) for hours in (-1, 0, 7, 8, 24)] == [
        False,
        True,
        True,
        False,
        False,
    ]


def planned(windows: list[dict[str, Any]], **more: Any) -> PolicySettings:
    keys = {key.replace("__", "."): value for key, value in more.items()}
    pool = {"max_replicas": 16, "schedule": windows} | keys.pop("pool", {})
    return policy_settings(load_config(None, {"pools": {"mixed": pool}, **keys}))


def limits(settings: PolicySettings, at: datetime, **starts_s: float) -> PoolLimits:
    known = {Role(role): seconds for role, seconds in starts_s.items()}
    return settings.bounds.at(at.timestamp(), known).limits[MIXED]


def span(settings: PolicySettings, at: datetime) -> tuple[int, int]:
    found = limits(settings, at, mixed=0.0)
    return found.min_replicas, found.max_replicas


INTERVAL_S = 30.0
OFFICE = {"days": ["mon", "tue", "wed", "thu", "fri"], "from": "8:00", "to": "20:00", "min_replicas": 4}
NIGHT = {"from": "22:00", "to": "06:00", "max_replicas": 2}


def test_of_windows_that_overlap_the_last_counts() -> None:
    noon = {"from": "12:00", "to": "13:00", "max_replicas": 5}
    at_noon, at_two = MONDAY.replace(hour=12), MONDAY.replace(hour=14)
    assert span(planned([OFFICE, noon]), at_noon) == (1, 5)
    assert span(planned([noon, OFFICE]), at_noon) == (4, 16)
    assert span(planned([OFFICE, noon]), at_two) == (4, 16)


@given(st.integers(0, 7 * MINUTES - 1), st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kolkata"]))
def test_without_a_lead_the_bounds_are_those_of_the_window_that_holds(minute: int, zone: str) -> None:
    settings = planned([OFFICE, NIGHT], planner__time_zone=zone)
    at = MONDAY + timedelta(minutes=minute)
    wall = at.astimezone(ZoneInfo(zone))
    working = wall.weekday() < 5 and 8 <= wall.hour < 20
    assert span(settings, at) == (4 if working else 1, 2 if wall.hour >= 22 or wall.hour < 6 else 16)


def test_a_minimum_counts_ahead_by_a_start_and_an_interval_and_a_maximum_from_the_beginning() -> None:
    settings = planned([OFFICE | {"max_replicas": 8}], planner__headway__lead_s=180.0)
    eight = MONDAY.replace(hour=8)

    def before(seconds: float, **starts_s: float) -> tuple[int, int]:
        found = limits(settings, eight - timedelta(seconds=seconds), **starts_s)
        return found.min_replicas, found.max_replicas

    assert before(180.0 + INTERVAL_S + 1.0) == (1, 16)
    assert before(180.0 + INTERVAL_S) == (4, 16)
    assert before(0.0) == (4, 8)
    # As learnt, where that is known.
    assert before(61.0 + INTERVAL_S, mixed=60.0) == (1, 16)
    assert before(60.0 + INTERVAL_S, mixed=60.0) == (4, 16)


def test_a_minimum_ahead_is_above_the_maximum_of_the_night() -> None:
    settings = planned([NIGHT, OFFICE | {"from": "06:00"}])
    found = limits(settings, MONDAY.replace(hour=5, minute=59))
    assert (found.min_replicas, found.max_replicas) == (4, 4)


def test_the_words_say_which_bounds_a_window_sets() -> None:
    settings = planned([OFFICE, NIGHT])
    morning, night = (limits(settings, MONDAY.replace(hour=hour)) for hour in (9, 23))
    assert morning.words() == "min 4 by schedule, from 08:00"
    assert (morning.words(4), morning.words(5)) == ("min 4 by schedule, from 08:00", "")
    assert night.words() == "max 2 by schedule, from 22:00"
    assert limits(settings, MONDAY.replace(hour=21)).words() == ""


SUMMER, WINTER = datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC)


@pytest.mark.parametrize(
    ("day", "begins", "ends", "inside"),
    [
        # 02:00 becomes 03:00 at 01:00 UTC: what the clock skips is in no window.
        (SUMMER, "01:30", "03:30", ("00:30", "01:30")),
        (SUMMER, "02:30", "04:00", ("01:00", "02:00")),
        (SUMMER, "08:00", "20:00", ("06:00", "18:00")),
        # 03:00 becomes 02:00 at 01:00 UTC: a window may hold twice.
        (WINTER, "01:30", "03:30", ("23:30", "02:30")),
        (
            WINTER,
            "02:30",
            "02:45",
            ("00:30", "00:45"),
        ),
        (WINTER, "08:00", "20:00", ("07:00", "19:00")),
    ],
)
def test_wall_clocks_rule_on_the_days_on_which_they_change(
    day: datetime, begins: str, ends: str, inside: tuple[str, str]
) -> None:
    settings = planned([{"from": begins, "to": ends, "min_replicas": 4}], planner__time_zone="Europe/Berlin")
    first, last = (day.replace(hour=int(at[:2]), minute=int(at[3:])) for at in inside)
    if first > last:
        first -= timedelta(days=1)
    minute = timedelta(minutes=1)
    assert [span(settings, at)[0] for at in (first - minute, first, last - minute, last)] == [1, 4, 4, 1]


def test_what_clocks_read_twice_holds_twice() -> None:
    settings = planned(
        [{"from": "02:30", "to": "02:45", "min_replicas": 4}], planner__time_zone="Europe/Berlin"
    )
    found = [span(settings, WINTER + timedelta(minutes=minutes))[0] for minutes in (30, 44, 45, 90, 104, 105)]
    assert found == [4, 4, 1, 4, 4, 1]


def test_the_highest_minimums_have_to_fit_into_the_budget() -> None:
    with pytest.raises(PlanningError, match="of all pools at the highest of their schedules"):
        planned([OFFICE], planner__max_gpu_budget=3)


def test_windows_survive_being_handed_over() -> None:
    begins = {"simulation.begins_at": "2026-03-29T07:40"}
    config = load_config(None, {"pools": {"mixed": {"schedule": [OFFICE, NIGHT]}}, **begins})
    assert HeadwayConfig.model_validate_json(config.model_dump_json()) == config
    assert load_config(None, config.model_dump(mode="json")) == config


CALM = "steady:rate_rps=0.2,duration_s=3000,seed=3,input_tokens=500,output_tokens=50"
START_S = 180.0


def ready_at(policy: str, at_s: float, **more: Any) -> list[int]:
    """Mixed replicas that are ready at second `at_s` of a run that begins at 07:40, and just before."""
    keys = {
        "pools": {"mixed": {"max_replicas": 8, "schedule": more.pop("windows")}},
        "planner.policy": policy,
        "planner.headway.lead_s": START_S,
        "planner.static.mixed": 1,
        "simulation.start_up_delay_s": START_S,
        "simulation.initial": {"mixed": 1},
        "simulation.begins_at": "2026-03-29T07:40",
        "planner.time_zone": "Europe/Berlin",
    }
    config = load_config(None, keys | {key.replace("__", "."): value for key, value in more.items()})
    plan = make_plan(config)
    with open_trace(CALM) as trace:
        series = run(plan, make_scenario(plan, trace), trace).replicas[Role.MIXED]
    points = list(zip(series.time_s, series.ready, strict=True))
    return [[count for time_s, count in points if time_s <= until_s][-1] for until_s in (0.0, at_s)]


MORNING = {"from": "08:00", "to": "08:20", "min_replicas": 4}
OPENS_S, CLOSES_S = 1200.0, 2400.0


@pytest.mark.parametrize("policy", ["headway", "threshold", "static"])
def test_the_replicas_of_a_window_serve_when_it_begins(policy: str) -> None:
    assert ready_at(policy, OPENS_S, windows=[MORNING]) == [1, 4]
    assert ready_at(policy, OPENS_S - START_S - 60.0, windows=[MORNING]) == [1, 1]
    assert ready_at(policy, CLOSES_S - 1.0, windows=[MORNING])[1] == 4


def test_headway_learns_how_early() -> None:
    early = {"from": "07:44", "to": "07:50", "min_replicas": 2}
    later = {"from": "08:05", "to": "08:20", "min_replicas": 4}
    late = {"windows": [early, later], "planner__headway__lead_s": 20.0}
    assert ready_at("headway", 240.0, **late)[1] == 1
    assert ready_at("headway", OPENS_S + 300.0, **late)[1] == 4


def test_a_maximum_that_falls_counts_when_its_window_begins() -> None:
    fleet = {"simulation.initial": {"mixed": 6}, "planner.static.mixed": 6}
    quiet = {"from": "08:00", "to": "09:00", "max_replicas": 2}
    keys = {key.replace(".", "__"): value for key, value in fleet.items()}
    assert ready_at("static", OPENS_S - 1.0, windows=[quiet], **keys) == [6, 6]
    assert ready_at("static", OPENS_S + 180.0, windows=[quiet], **keys) == [6, 2]


def test_the_first_fleet_is_within_the_bounds_of_its_time() -> None:
    begun = {"from": "07:00", "min_replicas": 3}
    assert ready_at("headway", 0.0, windows=[begun], simulation__initial="min") == [3, 3]
    assert ready_at("static", 0.0, windows=[begun], simulation__initial="sized") == [3, 3]


@dataclass(frozen=True)
class Loaded:
    """A policy of another package: it knows the pools' own limits alone."""

    count: int
    name: str = "loaded"
    interval_s: float = 30.0

    def initial_state(self) -> None:
        """There is none."""

    def plan(self, observation: Observation, state: None) -> Decision:
        return Decision(targets={MIXED: self.count}, next_state=state, reasons={"summary": "As always."})


def decided(count: int, hour: int) -> Decision:
    bounds = planned([OFFICE, NIGHT]).bounds
    now_s = MONDAY.replace(hour=hour).timestamp()
    pools = {MIXED: PoolState(desired=count, starting=0, ready=count, draining=0)}
    return decide(Loaded(count), dataclasses.replace(OBSERVED, now_s=now_s, pools=pools), None, bounds)


def test_the_counts_of_policies_that_do_not_know_schedules_are_fitted_and_the_reasons_say_so() -> None:
    raised, cut, free = decided(1, 9), decided(9, 23), decided(5, 9)
    assert [dict(each.targets) for each in (raised, cut, free)] == [{MIXED: 4}, {MIXED: 2}, {MIXED: 5}]
    assert raised.reasons["summary"] == "As always; mixed min 4 by schedule, from 08:00."
    assert raised.reasons["limits"] == ["mixed: min_replicas"]
    assert cut.reasons["schedule"] == {"mixed": "max 2 by schedule, from 22:00"}
    assert (free.reasons["summary"], free.reasons["schedule"]) == ("As always.", {})


def test_what_such_a_policy_decides_beyond_the_pools_own_limits_is_refused_as_ever() -> None:
    with pytest.raises(PolicyError, match=r"mixed 17 is above pools.mixed.max_replicas 16"):
        decided(17, 23)
