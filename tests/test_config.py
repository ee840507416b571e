"""Configuration: the documented shape, defaults, overrides, and one-line errors that name file and key."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from headway.config import (
    ConfigError,
    HeadwayConfig,
    config_tree,
    embedded_profiles,
    json_schema,
    load_config,
    resolve_profile,
)
from headway.config.base import known_keys

DOCUMENTED = """
model: llama-3.1-8b
slo: {ttft_ms: 300, itl_ms: 20, attainment: 0.99}
engine: {kind: simulated, profile: profiles/llama-3.1-8b_h100_tp1}
pools:
  prefill: {min_replicas: 1, max_replicas: 16, gpus_per_replica: 1}
  decode: {min_replicas: 2, max_replicas: 8, gpus_per_replica: 2}
planner: {policy: headway, predictor: kalman, adjustment_interval_s: 180, max_gpu_budget: 32}
metrics: {source: gateway}
connector: {kind: ray_serve}
routing: {profile: least_load}
gateway: {host: 127.0.0.1, port: 8000}
"""


def written(directory: Path, text: str) -> Path:
    path = directory / "headway.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_tree_of_a_configuration_is_what_a_file_would_hold(tmp_path):
    path = written(tmp_path, DOCUMENTED)
    changes = {"slo.ttft_ms": 150, "pools": {"mixed": {"max_replicas": 3}}, "engine.chunk_tokens": None}
    tree = config_tree(path, changes)
    assert (tree["model"], tree["slo"]["ttft_ms"]) == ("llama-3.1-8b", 150)
    assert "chunk_tokens" not in tree["engine"]
    assert HeadwayConfig.model_validate(tree) == load_config(path, changes)
    assert config_tree() == {}


def fault(path: Path | None = None, **overrides: object) -> str:
    dotted = {key.replace("__", "."): value for key, value in overrides.items()}
    with pytest.raises(ConfigError) as caught:
        load_config(path, dotted)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_the_documented_file_is_valid(tmp_path):
    config = load_config(written(tmp_path, DOCUMENTED))
    assert config.slo.ttft_s == pytest.approx(0.3)
    assert config.slo.itl_s == pytest.approx(0.02)
    assert config.pools["decode"].gpus_per_replica == 2
    assert config.planner.max_gpu_budget == 32


def test_every_key_has_a_default(tmp_path):
    assert load_config() == HeadwayConfig() == load_config(written(tmp_path, "# nothing\n"))
    assert load_config().planner.policy == "headway"


def test_overrides_win_over_the_file_and_none_means_not_given(tmp_path):
    path = written(tmp_path, DOCUMENTED)
    config = load_config(path, {"slo.ttft_ms": 200, "slo.itl_ms": None, "planner.static.decode": 7})
    assert config.slo.ttft_ms == 200
    assert config.slo.itl_ms == 20
    assert config.planner.static.decode == 7
    assert config.planner.max_gpu_budget == 32


def test_half_a_disaggregated_pair_is_completed():
    config = load_config(None, {"pools.prefill.max_replicas": 4})
    assert set(config.pools) == {"prefill", "decode"}
    assert config.pools["decode"].max_replicas == 16


def test_a_mixed_pool_stands_alone(tmp_path):
    assert set(load_config(None, {"pools.mixed.max_replicas": 3}).pools) == {"mixed"}
    path = written(tmp_path, "pools: {mixed: {}, decode: {}}")
    assert "mixed alone" in fault(path)


def test_settings_are_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        load_config().slo.ttft_ms = 1.0


@pytest.mark.parametrize(
    ("text", "key", "what"),
    [
        ("slo: {ttf_ms: 3}", "slo.ttf_ms", "did you mean 'ttft_ms'?"),
        ("plannr: {}", "plannr", "did you mean 'planner'?"),
        ("zzz: {}", "zzz", "known here: aliases, connector, deployments, engine"),
        ("pools: {prefill: {min_replica: 1}}", "pools.prefill.min_replica", "did you mean 'min_replicas'?"),
        (
            "planner: {predictor_options: {1: 2}}",
            "planner.predictor_options.1",
            "a key should be text, not 1",
        ),
        ("pools: {1: {}}", "pools.1", "unknown role"),
        ("slo: {ttft_ms: true}", "slo.ttft_ms", "should be a number, not true"),
        ("simulation: {seed: false}", "simulation.seed", "should be a number, not false"),
        ("gateway: {port: true}", "gateway.port", "should be a number, not true"),
        ("simulation: {initial: {prefill: true}}", "simulation.initial", "positive replica counts"),
        ("slo: {ttft_ms: 1:30}", "slo.ttft_ms", "not '1:30'"),
        ("simulation: {seed: 9223372036854775808}", "simulation.seed", "less than 9223372036854775808"),
        ("simulation: {start_up_delay_cv: 1.0e+200}", "simulation.start_up_delay_cv", "or equal to 10"),
        ("simulation: {start_up_delay_s: 1e7}", "simulation.start_up_delay_s", "or equal to 1000000"),
        ("engine: {max_batch_size: 65537}", "engine.max_batch_size", "or equal to 65536"),
        ("engine: {prefix_cache_tokens: 1000000001}", "engine.prefix_cache_tokens", "or equal to 1000000000"),
        ("engine: {kv_transfer: {bandwidth_gb_s: 1e-300}}", "engine.kv_transfer.bandwidth_gb_s", "0.000001"),
        ("engine: {kv_transfer: {latency_ms: 1e300}}", "engine.kv_transfer.latency_ms", "or equal to 1"),
        ("pools: {decode: {max_replicas: 1000001}}", "pools.decode.max_replicas", "or equal to 1000000"),
        ("pools: {decoder: {}}", "pools.decoder", "'prefill', 'decode' or 'mixed'"),
        ("slo: {ttft_ms: -3}", "slo.ttft_ms", "greater than 0, not -3"),
        ("slo: {itl_ms: .nan}", "slo.itl_ms", "finite number"),
        ("slo: {attainment: 99}", "slo.attainment", "less than or equal to 1"),
        ("slo: 3", "slo", "keys and values"),
        ("slo:", "slo", "keys and values"),
        (
            "pools: {prefill: {min_replicas: 5, max_replicas: 4}}",
            "pools.prefill",
            "5 is above max_replicas 4",
        ),
        ("pools: {prefill: {min_replicas: 1.5}}", "pools.prefill.min_replicas", "integer"),
        ("engine: {kind: quantum}", "engine.kind", "'simulated' or 'vllm'"),
        ("metrics: {source: prometheus}", "metrics", "needs a url"),
        ("routing: {profile: [slo]}", "routing.profile", "string"),
        ("routing: {gpu_profiles: {L20: 20}}", "routing.gpu_profiles.L20", "string"),
        ("routing: {gpu_profiles: {'': l20.json}}", "routing.gpu_profiles", "a GPU type has a name"),
        ("slo: {classes: {chat: {ttft: 3}}}", "slo.classes.chat.ttft", "did you mean 'ttft_ms'?"),
        ("slo: {classes: {chat: {share: 1.0e+300}}}", "slo.classes.chat.share", "less than or equal to"),
        (
            "routing: {scheduling_profiles: [{name: a, plugins: []}, {name: a, plugins: []}]}",
            "routing.scheduling_profiles",
            "a second profile named 'a'",
        ),
        ("simulation: {initial: many}", "simulation.initial", "{prefill: 2, decode: 3}"),
        ("simulation: {initial: {prefill: 0}}", "simulation.initial", "positive replica counts"),
        ("simulation: {crashes: [{at_s: 3}]}", "simulation.crashes.0.role", "field required"),
        (
            "simulation: {crashes: [{at_s: 3, rol: decode}]}",
            "simulation.crashes.0.rol",
            "did you mean 'role'?",
        ),
    ],
)
def test_a_fault_is_one_line_with_file_key_and_reason(tmp_path, text, key, what):
    path = written(tmp_path, text)
    message = fault(path)
    assert message.startswith(f"{path}: {key}: ")
    assert what in message


def test_a_fault_in_an_override_names_the_options_not_the_file(tmp_path):
    path = written(tmp_path, DOCUMENTED)
    assert fault(path, slo__ttft_ms=-1).startswith("options: slo.ttft_ms: ")
    assert fault(None, plannr__policy="x") == "options: plannr: unknown key; did you mean 'planner'?"


def test_simulation_may_only_name_pools_that_exist(tmp_path):
    path = written(tmp_path, "simulation: {crashes: [{at_s: 1, role: mixed}]}")
    assert "names mixed, but pools has no such role" in fault(path)


def test_several_faults_are_counted(tmp_path):
    assert fault(written(tmp_path, "slo: {ttft_ms: -1, itl_ms: -1}")).endswith("(and 1 more)")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("slo: {ttft_ms: 3\nmodel: x\n", "line 2: "),
        ("model: a\nslo: {}\nmodel: b\n", "line 3: key 'model' appears twice"),
        ("- a\n- b\n", "should hold keys and values, not list"),
        ("model: \x07", "is not YAML"),
        ("model: a\n? [a]\n: b\n", "line 2: a key should be text"),
        ("[" * 3000, "is nested too deeply"),
        ("slo:\n  ttft_ms: !!int x\n", "line 2: 'x' cannot be read as int"),
        ("model: !!timestamp 2020-99-99", "line 1: '2020-99-99' cannot be read as timestamp"),
        ("model: " + "9" * 5000, "line 1: '9999"),
    ],
)
def test_text_that_is_no_mapping_is_refused(tmp_path, text, what):
    path = written(tmp_path, text)
    message = fault(path)
    assert message.startswith(f"{path}: ")
    assert what in message


@pytest.mark.parametrize("text", ["model: 2020-99-99", "model: 2020-01-01"])
def test_what_looks_like_a_date_is_text(tmp_path, text):
    assert load_config(written(tmp_path, text)).model == text.removeprefix("model: ")


@pytest.mark.parametrize(
    ("text", "value"), [("1e2", 100), (".5", 0.5), ("-0x10", -16), ("1:30", "1:30"), ("+7", 7)]
)
def test_numbers_are_those_of_yaml_1_2(tmp_path, text, value):
    options = load_config(written(tmp_path, f"planner: {{predictor_options: {{a: {text}}}}}")).planner
    assert options.predictor_options == {"a": value}


def test_a_value_that_is_huge_through_aliases_is_shown_short(tmp_path):
    levels = ["&l0 [x, x, x]", *(f"&l{n} [*l{n - 1}, *l{n - 1}, *l{n - 1}]" for n in range(1, 60))]
    options = ", ".join(f"k{n}: {level}" for n, level in enumerate(levels))
    path = written(tmp_path, f"planner: {{predictor_options: {{{options}}}}}\nmodel: *l59\n")
    assert len(fault(path)) < len(str(path)) + 120


def test_files_that_cannot_be_read(tmp_path):
    assert "cannot be read: No such file" in fault(tmp_path / "absent.yaml")
    assert "cannot be read: Is a directory" in fault(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\xff")
    assert fault(binary) == f"{binary}: is not UTF-8 text"


def test_the_schema_knows_every_section_and_forbids_others():
    schema = json_schema()
    assert set(schema["properties"]) == set(HeadwayConfig.model_fields)
    assert schema["additionalProperties"] is False
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert "max_replicas" in known_keys(schema, ("pools", "prefill"))
    assert known_keys(schema, ("slo", "ttft_ms")) == ()


def test_a_profile_directory_wins_over_a_shipped_name(tmp_path, monkeypatch):
    shipped = tmp_path / "shipped"
    (shipped / "tiny" / "selected_prefill_interpolation").mkdir(parents=True)
    (shipped / "not-a-profile").mkdir()
    assert embedded_profiles(shipped) == ("tiny",)
    assert resolve_profile("tiny", shipped) == resolve_profile("profiles/tiny", shipped) == shipped / "tiny"
    (tmp_path / "work" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    assert resolve_profile("tiny", shipped) == Path("tiny")


@pytest.mark.parametrize("name", ["nowhere", "profiles/../tiny", ""])
def test_an_unknown_profile_lists_the_shipped_ones(tmp_path, name):
    (tmp_path / "tiny" / "selected_prefill_interpolation").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"engine\.profile: .* nor a shipped profile \(tiny\)"):
        resolve_profile(name, tmp_path)


def test_several_gateways_need_a_port_that_clients_know():
    assert load_config(None, {"gateway.replicas": 3}).gateway.replicas == 3
    with pytest.raises(ConfigError, match="several replicas need a port"):
        load_config(None, {"gateway.replicas": 2, "gateway.port": 0})
