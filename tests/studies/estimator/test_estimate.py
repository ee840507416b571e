import json
import pathlib

import numpy as np
import pytest
from analytic_engine import AnalyticEngine, open_from_two_gpus

from headway.profiling import OutputExistsError, ProfilingError, RequestError
from headway_studies.estimator.estimate import check_output, estimate, write_estimates
from headway_studies.estimator.request import EngineSpec, EstimateError, EstimateRequest, Estimates
from interp import load_profile


def ask(**options: object) -> EstimateRequest:
    return EstimateRequest(model="maker/Meta-Toy-1B", system="h100_sxm", **options)  # type: ignore[arg-type]


def toy(**options: object) -> Estimates:
    return estimate(ask(**options), open_estimator=AnalyticEngine)


def test_tables_hold_the_estimators_answers_in_seconds_and_per_gpu() -> None:
    (profile,) = toy(tps=(2,))
    engine = AnalyticEngine(EngineSpec(model="", system="", backend="", tp=2))
    prefill, decode = profile.prefill, profile.decode
    expected_ttft = [engine.prefill_ms(int(isl)) / 1e3 for isl in prefill.isl_tokens]
    assert np.array_equal(prefill.ttft_s, expected_ttft)
    assert np.allclose(prefill.throughput_per_gpu * 2 * prefill.ttft_s, prefill.isl_tokens)
    batch = np.rint(decode.batch_size)
    assert np.allclose(decode.batch_size, batch)
    expected_itl = [
        engine.decode_ms(int(n), int(c)) / 1e3 for n, c in zip(batch, decode.context_tokens, strict=True)
    ]
    assert np.array_equal(decode.itl_s, expected_itl)
    assert np.allclose(decode.throughput_per_gpu * 2 * decode.itl_s, batch)


def test_the_grid_covers_one_request_and_the_full_cache() -> None:
    (profile,) = toy()
    for context in np.unique(profile.decode.context_tokens):
        batch = np.rint(profile.decode.batch_size[profile.decode.context_tokens == context])
        assert batch.min() == 1
        assert batch.max() == min(256, 40_000 // context)
    assert profile.prefill.isl_tokens.max() == 32_768
    assert profile.decode.kv_usage.max() <= 1.0


def test_a_capacity_below_the_models_context_bounds_both_grids() -> None:
    profiles = estimate(ask(), open_estimator=lambda spec: AnalyticEngine(spec, max_kv_tokens=3_000))
    (profile,) = profiles
    assert profile.prefill.isl_tokens.max() == 3_000
    assert profile.decode.context_tokens.max() == 3_000


def test_requested_limits_bound_the_grids() -> None:
    (profile,) = toy(max_isl_tokens=4_000, max_batch=8, isl_points=5, context_points=3, batch_points=4)
    assert profile.prefill.isl_tokens.tolist() == [128, 303, 716, 1692, 4000]
    assert len(np.unique(profile.decode.context_tokens)) == 3
    assert np.rint(profile.decode.batch_size).max() == 8
    assert profile.meta["max_batch_size"] == 8


def test_meta_says_where_the_numbers_come_from() -> None:
    (profile,) = toy(tps=(4,), quantization="fp8")
    meta = profile.meta
    assert meta["source"] == "estimated with analytic double 1, not measured end to end"
    assert (meta["tp"], meta["gpus_per_engine"], meta["max_kv_tokens"]) == (4, 4, 40_000)
    assert (meta["database_mode"], meta["quantization"]) == ("FORMULA", "fp8")
    assert meta["notes"] == ["a test double, not an engine"]
    assert meta["command"] == (
        "headway estimate --model maker/Meta-Toy-1B --system h100_sxm --backend vllm --tp 4 "
        "--quantization fp8 --output DIR"
    )


def test_progress_counts_every_sample_of_every_size_once() -> None:
    seen: list[tuple[int, int, str]] = []
    profiles = estimate(ask(tps=(1, 2)), lambda *step: seen.append(step), AnalyticEngine)
    total = sum(len(p.prefill.isl_tokens) + len(p.decode.itl_s) for p in profiles)
    assert [done for done, _, _ in seen] == list(range(1, total + 1))
    assert {of for _, of, _ in seen} == {total}
    assert seen[0][2] == "toy-1b_h100_tp1: prefill"
    assert seen[-1][2] == "toy-1b_h100_tp2: decode"


def test_a_size_that_does_not_fit_is_skipped_with_its_reason() -> None:
    profiles = estimate(ask(tps=(1, 2)), open_estimator=open_from_two_gpus)
    assert [profile.name for profile in profiles] == ["toy-1b_h100_tp2"]
    assert profiles.skipped == {1: "maker/Meta-Toy-1B does not fit on 1 x h100_sxm"}


def test_no_size_that_fits_is_an_error_with_every_reason() -> None:
    with pytest.raises(EstimateError, match="does not fit on 1 x h100_sxm"):
        estimate(ask(tps=(1,)), open_estimator=open_from_two_gpus)


def test_an_answer_that_is_no_latency_is_refused() -> None:
    class Broken(AnalyticEngine):
        def decode_ms(self, batch: int, context_tokens: int) -> float:
            return float("nan")

    with pytest.raises(
        EstimateError, match="decode at batch 1 and 256 tokens: the estimator answered nan ms"
    ):
        estimate(ask(), open_estimator=Broken)


def test_too_small_a_cache_is_refused() -> None:
    with pytest.raises(EstimateError, match="only 100 tokens fit"):
        estimate(ask(), open_estimator=lambda spec: AnalyticEngine(spec, max_kv_tokens=100))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tps": ()}, "tp: .* got none"),
        ({"tps": (2, 2)}, "tp: .* got 2, 2"),
        ({"tps": (0,)}, "tp: .* got 0"),
        ({"max_batch": 0}, "max_batch: expected at least 1, got 0"),
        ({"isl_points": 1}, "isl_points: expected at least 2"),
        ({"max_isl_tokens": 128}, "max_isl_tokens: expected at least 256"),
        ({"memory_fraction": 0.0}, "memory_fraction: .* got 0.0"),
        ({"memory_fraction": float("nan")}, "memory_fraction: .* got nan"),
        ({"name": "../away"}, "name: .* got '../away'"),
    ],
)
def test_impossible_requests_name_the_field(options: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        ask(**options)


@pytest.mark.parametrize(
    ("model", "system", "quantization", "name", "expected"),
    [
        ("meta-llama/Meta-Llama-3.1-8B", "h100_sxm", None, None, "llama-3.1-8b_h100_tp2"),
        ("Qwen/Qwen3-32B", "h100_sxm", None, None, "qwen3-32b_h100_tp2"),
        ("Qwen/Qwen3-32B", "h200_sxm", "fp8", None, "qwen3-32b-fp8_h200_tp2"),
        ("./models/mine/", "h100_pcie", None, None, "mine_h100-pcie_tp2"),
        ("Qwen/Qwen3-32B", "h100_sxm", None, "big", "big_tp2"),
    ],
)
def test_directory_names(
    model: str, system: str, quantization: str | None, name: str | None, expected: str
) -> None:
    request = EstimateRequest(model=model, system=system, quantization=quantization, name=name, tps=(2,))
    assert request.directory_name(2) == expected


def test_written_profiles_load_again(tmp_path: pathlib.Path) -> None:
    (profile,) = toy(tps=(2,))
    (place,) = write_estimates([profile], tmp_path / "new")
    loaded = load_profile(place)
    assert place == tmp_path / "new" / "toy-1b_h100_tp2"
    assert loaded.gpus_per_engine == 2
    assert loaded.prefill.ttft_s(1000) == pytest.approx((2 + 10 + 0.04) / 2e3, rel=0.02)
    assert loaded.decode.itl_s(8 * 2048 / 40_000, 2048) == pytest.approx((5 + 0.4 + 0.16384) / 1e3, rel=0.02)
    assert json.loads((place / "meta.json").read_text())["tool"] == "analytic double"


def test_the_same_request_gives_the_same_bytes(tmp_path: pathlib.Path) -> None:
    for folder in ("a", "b"):
        write_estimates(toy(), tmp_path / folder)
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert len(files) == 3
    assert all((tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes() for file in files)


def test_an_existing_directory_is_not_overwritten_unless_asked(tmp_path: pathlib.Path) -> None:
    occupied = tmp_path / "toy-1b_h100_tp2"
    write_estimates(toy(tps=(2,), max_batch=4), tmp_path)
    profiles = toy(tps=(1, 2))
    with pytest.raises(OutputExistsError, match="toy-1b_h100_tp2 exists and is not empty"):
        write_estimates(profiles, tmp_path)
    with pytest.raises(OutputExistsError, match="toy-1b_h100_tp2"):
        check_output(ask(tps=(1, 2)), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["toy-1b_h100_tp2"]
    assert load_profile(occupied).meta["max_batch_size"] == 4
    write_estimates(profiles, tmp_path, overwrite=True)
    assert load_profile(occupied).meta["max_batch_size"] == 256


def test_overwriting_spares_a_directory_that_is_no_profile(tmp_path: pathlib.Path) -> None:
    mine = tmp_path / "toy-1b_h100_tp2" / "thesis.txt"
    mine.parent.mkdir()
    mine.write_text("years of work")
    with pytest.raises(ProfilingError, match="toy-1b_h100_tp2"):
        write_estimates(toy(tps=(1, 2)), tmp_path, overwrite=True)
    assert mine.read_text() == "years of work"


def test_a_file_in_the_way_is_an_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "toy-1b_h100_tp1").write_text("")
    with pytest.raises(OutputExistsError, match="is not a directory"):
        write_estimates(toy(), tmp_path, overwrite=True)
    with pytest.raises(ProfilingError):
        write_estimates(toy(tps=(4,)), tmp_path / "toy-1b_h100_tp1")
