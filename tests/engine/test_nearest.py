"""Estimates for engines without a profile: what names say, what is nearest, and what is said of it."""

import pytest

from headway.config import HeadwayConfig, load_config
from headway.engine.nearest import Model, Told, gpu_of, guess_text, model_of, nearest_profile
from headway.engine.observed_latency import LatencyReport, Phase
from headway.engine.refinement import Refinement, learn, measured, refined
from headway.engine.rules import engine_profile
from interp import Profile, load_profile


def config(model: str, **settings: object) -> HeadwayConfig:
    return load_config(None, {"engine.kind": "external", "model": model, **settings})


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", Model(70.0, 70.0, 2.0)),
        ("Qwen3-30B-A3B-FP8", Model(30.0, 3.0, 1.0)),
        ("TheBloke/Llama-2-13B-AWQ", Model(13.0, 13.0, 0.5)),
        ("Mixtral-8x7B-v0.1", Model(56.0, 14.0, 2.0)),
        ("Qwen2.5-0.5B", Model(0.5, 0.5, 2.0)),
        ("opt-125m", Model(0.125, 0.125, 2.0)),
        ("deepseek-ai/DeepSeek-R1", Model(671.0, 37.0, 2.0)),
        ("DeepSeek-R1-Distill-Qwen-32B", Model(32.0, 32.0, 2.0)),
        ("openai/gpt-oss-120b", Model(117.0, 5.1, 0.5)),
        ("gpt-4", None),
        ("chat-v3.1", None),
    ],
)
def test_names_say_the_size_of_a_model(name: str, model: Model | None) -> None:
    assert model_of(name) == model


@pytest.mark.parametrize(
    ("text", "gpu"),
    [
        ("NVIDIA-A100-SXM4-80GB", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("l40s", "l40s"),
        ("gke-pool-l4-spot", "l4"),
        ("AMD Instinct MI300X", "mi300x"),
        ("vllm-7d9f8-xl4zt", None),
        ("10.0.0.7:8000", None),
    ],
)
def test_labels_name_a_gpu(text: str, gpu: str | None) -> None:
    assert gpu_of(text) == gpu


def test_an_engine_that_is_embedded_is_taken_as_it_is() -> None:
    profile = nearest_profile(config("llama-3.1-70b", **{"engine.gpu_type": "A100"}))
    embedded = load_profile_of("llama-3.1-70b_a100_tp4")
    assert profile.meta["guessed"]["from"] == "llama-3.1-70b_a100_tp4"
    assert (profile.gpus_per_engine, profile.meta["guessed"]["within"]) == (4, 2.0)
    assert profile.prefill.ttft_s(1024.0) == pytest.approx(embedded.prefill.ttft_s(1024.0))
    assert profile.decode.itl_s(0.2, 2048.0) == pytest.approx(embedded.decode.itl_s(0.2, 2048.0))
    assert profile.decode.table.max_kv_tokens == embedded.decode.table.max_kv_tokens


def load_profile_of(name: str) -> Profile:
    from headway.config import resolve_profile

    return load_profile(resolve_profile(name))


def test_engines_say_what_settings_do_not() -> None:
    """Of an alias the path of the weights tells, of the GPU a label."""
    told = Told(("/models/Llama-3.1-70B-Instruct", "chat"), ("10.0.0.7:8000", "NVIDIA-H200"))
    profile = nearest_profile(config("chat"), told)
    assert profile.meta["guessed"]["from"].startswith("llama-3.1-70b_h200")
    assert profile.meta["guessed"]["model"] == "/models/Llama-3.1-70B-Instruct, 70B"


@pytest.mark.parametrize(
    ("gpus", "name", "decode"),
    [(1, "llama-3.1-8b_a100_tp1", 14.0 / 8.0), (2, "llama-3.1-8b_h200_tp1", 14.0 / 8.0 * 4.8 / (2.0 * 2.04))],
)
def test_what_is_not_embedded_is_scaled_by_what_a_token_reads(gpus: int, name: str, decode: float) -> None:
    """14B on A100, by bandwidth; a pair of them is nearer to one H200."""
    settings = {"engine.gpu_type": "A100", "pools": {"mixed": {"gpus_per_replica": gpus}}}
    profile = nearest_profile(config("qwen2.5-14b", **settings))
    assert profile.meta["guessed"]["from"] == name
    assert profile.meta["guessed"]["decode"] == pytest.approx(decode)
    base, context = load_profile_of(name), 2048.0
    held = float(profile.decode.table.max_kv_tokens / base.decode.table.max_kv_tokens)
    before_s = base.decode.itl_s(0.2 * held, context)
    assert profile.decode.itl_s(0.2, context) == pytest.approx(decode * before_s, rel=0.02)
    assert profile.decode.samples.throughput_per_gpu == pytest.approx(
        profile.decode.samples.batch_size / profile.decode.samples.itl_s / gpus
    )


def test_nothing_known_is_said_to_be_a_wild_guess() -> None:
    profile = engine_profile(config("chat"))
    assert profile.meta["guessed"]["within"] == 10.0
    text = guess_text(profile.meta)
    assert "a model of unknown size on GPUs of unknown type" in text
    assert "prefill is a guess, within a factor of 10" in text
    given = engine_profile(config("chat", **{"engine.profile": "llama-3.1-8b_h100_tp1"}))
    assert guess_text(given.meta) == ""


def test_engines_of_ours_have_the_default_profile() -> None:
    assert load_config(None, {}).engine.profile == "profiles/llama-3.1-8b_h100_tp1"
    assert "profile" not in load_config(None, {}).engine.model_fields_set


def test_what_was_learnt_and_where_is_said() -> None:
    profile = nearest_profile(config("llama-3.1-8b", **{"engine.gpu_type": "A100"}))
    expected_s = float(profile.prefill.ttft_s(1000.0))
    reports = [
        LatencyReport(Phase.PREFILL, tokens, expected_s) for tokens in (200.0, 1000.0) for _ in range(20)
    ]
    text = guess_text(refined(profile, learn(Refinement(), measured(profile, reports), 0.0)).meta)
    assert "prefill learnt within 11 % for 200 to 1,000 tokens, decode is a guess" in text
