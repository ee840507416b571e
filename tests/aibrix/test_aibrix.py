"""AIBrix profiles: orientation, what stands in for E2E, and faults in one line."""

import json
import math

import numpy as np
import pytest

from headway.config import Role
from headway.engine import EngineRules
from headway.profiling import ForeignProfileError
from headway.routing import RoutingError
from headway_aibrix.plugins import capacity_table
from headway_aibrix.profiles import load_aibrix_profile, parse_aibrix_profile
from tests.aibrix.test_capacity import asked, loads


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
    return profile.capacity(input_tokens, output_tokens)


def without(*keys, **changes):
    return {key: value for key, value in content(**changes).items() if key not in keys}


@pytest.mark.parametrize(
    ("input_tokens", "output_tokens", "expected"),
    [
        (128, 16, 4.0),
        (512, 16, 3.0),
        (128, 64, 8.0),
        (512, 64, 5.0),
        (256, 16, 12**0.5),
        (128, 32, 32**0.5),
        (256, 32, (4 * 3 * 8 * 5) ** 0.25),
        (1, 1, 4.0),
        (1, 10**6, 8.0),
        (10**6, 16, 2.0),
    ],
)
def test_capacity_is_rate_times_stay_linear_in_logarithms(input_tokens, output_tokens, expected):
    assert capacity(parse_aibrix_profile(content(), "x"), input_tokens, output_tokens) == pytest.approx(
        expected
    )


@pytest.mark.parametrize(
    ("input_tokens", "output_tokens", "fits"),
    [
        (2048, 64, False),
        (10**6, 10**6, False),
        (1025, 64, False),
        (1024, 64, False),
        (1023, 64, True),
        (2000, 33, False),
        (2000, 31, True),
        (2048, 32, False),
    ],
)
def test_the_nearest_point_says_whether_a_request_fits_at_all(input_tokens, output_tokens, fits):
    profile = parse_aibrix_profile(content(), "x")
    found = loads(profile, asked(input_tokens, output_tokens), [0.0])[0]
    assert (found <= 1.0) if fits else (found == math.inf)


def test_points_without_a_rate_do_not_count_beside_those_with_one():
    profile = parse_aibrix_profile(content(), "x")
    assert capacity(profile, 1000, 64) == pytest.approx(5.0), "between 5.0 and nothing"
    assert 2.0 < capacity(profile, 2000, 31) < 3.0


def test_loads_are_those_of_the_grids_function_at_any_length():
    """The mean error was 26 % when lengths went through octaves to the nearest point."""

    def truth(input_tokens, output_tokens):
        return 1.0 + 4e5 / (input_tokens**0.8 * output_tokens**0.4)

    outputs, inputs = [4 * 4**step for step in range(6)], [8 * 4**step for step in range(7)]
    rates = [[truth(tokens, output) for tokens in inputs] for output in outputs]
    ones = [[1.0] * len(inputs) for _ in outputs]
    profile = parse_aibrix_profile({"indexes": [outputs, inputs], "tputs": rates, "e2e": ones}, "x")
    draw = np.random.default_rng(4)
    lengths = np.exp2(draw.uniform((3, 2), (15, 12), (2000, 2))).astype(int)
    found = [loads(profile, asked(*each), [0.0])[0] * truth(*each) - 1.0 for each in lengths.tolist()]
    assert np.abs(found).mean() < 0.05


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
    assert capacity(profile, 512, 16) == pytest.approx(4.0)
    assert capacity(profile, 128, 64) == pytest.approx(2.0)


def test_a_rate_with_a_short_stay_has_room_for_one():
    profile = parse_aibrix_profile(content(e2e=[[0.01, 0.75, 1.0], [2.0, 5.0, 9.0]]), "x")
    assert capacity(profile, 128, 16) == 1.0


def test_ttft_and_tpot_stand_in_for_e2e_and_then_the_slo_does():
    parts = without("e2e", ttft=[[0.1] * 3, [0.5] * 3], tpot=[[0.01] * 3, [0.1] * 3])
    assert capacity(parse_aibrix_profile(parts, "x"), 128, 64) == pytest.approx(4.0 * (0.5 + 63 * 0.1))
    bound = parse_aibrix_profile(without("e2e"), "x")
    assert capacity(bound, 128, 64) == 4.0 * 6.0
    assert capacity(bound, 2048, 64) == 0.0


def test_other_roles_are_unknown_to_it_and_loads_are_one_over_capacity():
    table = capacity_table({"A10": parse_aibrix_profile(content(), "x")}, EngineRules())
    for role, expected in ((Role.MIXED, 1 / 3), (Role.PREFILL, math.nan), (Role.DECODE, math.nan)):
        found = loads(table, asked(512, 16, role), [0.0, 99.0], gpu_type="A10")
        assert found.tolist() == pytest.approx([expected] * 2, nan_ok=True)
    assert np.isnan(loads(table, asked(512, 16), [0.0], gpu_type="other")).all()


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
    with pytest.raises(ForeignProfileError) as caught:
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
