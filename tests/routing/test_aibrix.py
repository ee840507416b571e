"""AIBrix profiles: orientation, what stands in for E2E, and faults in one line."""

import json
import math

import pytest

from headway.config import Role
from headway.routing import RequestSlo, RoutingError
from headway.routing.aibrix import load_aibrix_profile, parse_aibrix_profile
from headway.routing.capacity import Buckets, CapacityTable, RequestPattern

SLO = RequestSlo()


def content(**changes):
    """Two output lengths by three input lengths."""
    return {
        "gpu": "A10",
        "cost": 1.5,
        "tputs": [[8.0, 4.0, 2.0], [4.0, 1.0, 0.0]],
        "indexes": [[16, 64], [128, 512, 2048]],
        "created": 1.7e9,
        "e2e": [[0.5, 0.75, 1.0], [2.0, 5.0, 9.0]],
        "slos": {"percentile": 99, "e2e": 6.0},
        **changes,
    }


def capacity(profile, input_tokens, output_tokens):
    return profile.capacity(input_tokens, output_tokens, Role.MIXED, SLO)


def without(*keys, **changes):
    return {key: value for key, value in content(**changes).items() if key not in keys}


@pytest.mark.parametrize(
    ("input_tokens", "output_tokens", "expected"),
    [
        (128, 16, 4.0),
        (512, 16, 3.0),
        (128, 64, 8.0),
        (512, 64, 5.0),
        (2048, 64, 0.0),
        (255, 31, 4.0),
        (257, 33, 5.0),
        (256, 32, 5.0),
        (1, 1, 4.0),
        (10**6, 10**6, 0.0),
    ],
)
def test_capacity_is_rate_times_stay_at_the_nearest_point(input_tokens, output_tokens, expected):
    assert capacity(parse_aibrix_profile(content(), "x"), input_tokens, output_tokens) == expected


def test_tables_that_fit_only_the_other_way_round_are_turned():
    turned = content(
        tputs=[list(column) for column in zip(*content()["tputs"], strict=True)],
        e2e=[list(column) for column in zip(*content()["e2e"], strict=True)],
    )
    assert parse_aibrix_profile(turned, "x").requests == parse_aibrix_profile(content(), "x").requests


def test_square_tables_are_outputs_by_inputs():
    square = content(
        indexes=[[16, 64], [128, 512]], tputs=[[8.0, 4.0], [2.0, 1.0]], e2e=[[1.0, 1.0], [1.0, 1.0]]
    )
    profile = parse_aibrix_profile(square, "x")
    assert capacity(profile, 512, 16) == 4.0
    assert capacity(profile, 128, 64) == 2.0


def test_a_rate_with_a_short_stay_has_room_for_one():
    profile = parse_aibrix_profile(content(e2e=[[0.01, 0.75, 1.0], [2.0, 5.0, 9.0]]), "x")
    assert capacity(profile, 128, 16) == 1.0


def test_ttft_and_tpot_stand_in_for_e2e_and_then_the_slo_does():
    parts = without("e2e", ttft=[[0.1] * 3, [0.5] * 3], tpot=[[0.01] * 3, [0.1] * 3])
    assert capacity(parse_aibrix_profile(parts, "x"), 128, 64) == pytest.approx(4.0 * (0.5 + 63 * 0.1))
    bound = parse_aibrix_profile(without("e2e"), "x")
    assert capacity(bound, 128, 64) == 4.0 * 6.0
    assert capacity(bound, 2048, 64) == 0.0


def test_other_roles_are_unknown_to_it():
    profile = parse_aibrix_profile(content(), "x")
    assert profile.capacity(128, 16, Role.PREFILL, SLO) is None
    assert profile.capacity(128, 16, Role.DECODE, SLO) is None


def test_it_is_a_source_of_a_capacity_table():
    table = CapacityTable({"A10": parse_aibrix_profile(content(), "x")}, Buckets((16, 17, 512, 513)))
    fits, never = RequestPattern("m", 2, 0), RequestPattern("m", 3, 3)
    assert table.load(fits, "A10", Role.MIXED, SLO) == pytest.approx(1 / 3)
    assert table.load(never, "A10", Role.MIXED, SLO) == pytest.approx(1 / 5)
    assert table.load(fits, "other", Role.MIXED, SLO) is None


@pytest.mark.parametrize(
    ("bad", "key", "fault"),
    [
        ([], "", "must be an object"),
        (without("tputs"), "tputs", "missing"),
        (without("indexes"), "indexes", "two lists"),
        (without("e2e", slos={}), "e2e", "missing"),
        (content(indexes=[[16, 64]]), "indexes", "two lists"),
        (content(indexes=[[64, 16], [128, 512, 2048]]), "indexes[0]", "ascend"),
        (content(indexes=[[16, 64], [0, 512, 2048]]), "indexes[1]", "ascend"),
        (content(indexes=[[16, 64], []]), "indexes[1]", "list of numbers"),
        (content(tputs=[[1.0, 2.0], [3.0, 4.0]]), "tputs", "2 rows (output) of 3"),
        (content(tputs=[[1.0, 2.0, 3.0], [3.0, 4.0]]), "tputs", "2 rows (output) of 3"),
        (content(tputs=[[1.0, 2.0, -3.0], [3.0, 4.0, 5.0]]), "tputs[0][2]", "0 .. 1e+12"),
        (content(tputs=[[1.0, 2.0, "3"], [3.0, 4.0, 5.0]]), "tputs[0][2]", "a number"),
        (content(tputs=[[1.0, 2.0, True], [3.0, 4.0, 5.0]]), "tputs[0][2]", "a number"),
        (content(tputs="fast"), "tputs", "list of rows"),
        (content(e2e=[[0.0, 1.0, 1.0], [1.0, 1.0, 1.0]]), "e2e[0][0]", "positive"),
        (content(e2e=[[math.nan, 1.0, 1.0], [1.0, 1.0, 1.0]]), "e2e[0][0]", "0 .. 1e+12"),
        (content(cost=10**400), "cost", "0 .. 1e+12"),
        (content(slos=[1]), "slos", "an object"),
        (content(slos={"e2e": None}), "slos.e2e", "a number"),
    ],
)
def test_faults_are_one_line_with_file_key_and_fault(bad, key, fault):
    with pytest.raises(RoutingError) as caught:
        parse_aibrix_profile(bad, "dir/a10.json")
    message = str(caught.value)
    assert message.startswith(f"dir/a10.json: {key}")
    assert fault in message
    assert "\n" not in message
    assert len(message) < 160


def test_files(tmp_path):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(content()))
    bad.write_text('{"gpu": ')
    assert load_aibrix_profile(good).cost == 1.5
    with pytest.raises(RoutingError, match=r"bad\.json: not JSON: "):
        load_aibrix_profile(bad)
    bad.write_bytes(b"\xff\xfe")
    with pytest.raises(RoutingError, match=r"bad\.json: not JSON: "):
        load_aibrix_profile(bad)
    with pytest.raises(RoutingError, match=r"none\.json: No such file"):
        load_aibrix_profile(tmp_path / "none.json")
