import subprocess
import sys

import pytest

from headway.config import ConfigError
from serve_apps.arguments import read_arguments

FILE = """
model: small
gateway: {port: 8123}
pools: {decode: {max_replicas: 3}}
"""


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "headway.yaml"
    path.write_text(FILE)
    return path


def test_defaults():
    assert set(read_arguments({}, "disaggregated").pools) == {"prefill", "decode"}
    assert set(read_arguments({}, "aggregated").pools) == {"mixed"}


def test_dotted_keys_win_over_the_file(config_file):
    arguments = {"config": str(config_file), "gateway.port": "8001", "pools.decode.min_replicas": "2"}
    config = read_arguments(arguments, "disaggregated")
    assert config.model == "small"
    assert config.gateway.port == 8001
    assert (config.pools["decode"].min_replicas, config.pools["decode"].max_replicas) == (2, 3)
    assert config.pools["prefill"].max_replicas == 16


def test_text_is_read_as_yaml():
    arguments = {
        "gateway.api_keys": "[one, two]",
        "planner.max_gpu_budget": "null",
        "planner.dry_run": "true",
    }
    config = read_arguments(arguments, "disaggregated")
    assert [key.get_secret_value() for key in config.gateway.api_keys] == ["one", "two"]
    assert config.planner.max_gpu_budget is None
    assert config.planner.dry_run is True


def test_nested_mappings_of_a_serve_config_file_add_to_the_file(config_file):
    arguments = {"config": str(config_file), "gateway": {"host": "127.0.0.2"}, "slo": {"ttft_ms": 150}}
    config = read_arguments(arguments, "disaggregated")
    assert (config.gateway.host, config.gateway.port) == ("127.0.0.2", 8123)
    assert config.slo.ttft_ms == 150


def test_a_mixed_pool_keeps_its_settings():
    config = read_arguments({"pools.mixed.max_replicas": "4"}, "aggregated")
    assert config.pools["mixed"].max_replicas == 4


@pytest.mark.parametrize(
    ("arguments", "topology", "words"),
    [
        ({"pools.mixed.max_replicas": "4"}, "disaggregated", "serve_apps.agg"),
        ({"pools.decode.max_replicas": "4"}, "aggregated", "serve_apps.disagg"),
        ({"gateway.prt": "1"}, "disaggregated", "gateway.prt"),
        ({"gateway.port": "many"}, "disaggregated", "gateway.port"),
        ({"slo.ttft_ms": "[1"}, "disaggregated", "slo.ttft_ms"),
        ({"config": "/nowhere/headway.yaml"}, "disaggregated", "/nowhere/headway.yaml"),
        ({"config": 3}, "disaggregated", "config"),
        ({"engine.profile": "nowhere"}, "disaggregated", "engine.profile"),
        ({"routing.gpu_profiles.L20": "nowhere"}, "disaggregated", "routing.gpu_profiles.L20"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments, topology, words):
    with pytest.raises(ConfigError) as caught:
        read_arguments(arguments, topology)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_broken_model_that_is_here_is_found_before_anything_is_deployed(config_file, tmp_path):
    (tmp_path / "model").mkdir()
    arguments = {"config": str(config_file), "engine.kind": "vllm", "engine.vllm.model": "model"}
    with pytest.raises(ConfigError, match=rf"^engine.vllm.model: {tmp_path}/model: holds no config.json"):
        read_arguments(arguments, "disaggregated")
    elsewhere = arguments | {"engine.vllm.model": "/on/another/node"}
    assert read_arguments(elsewhere, "disaggregated").engine.vllm.model == "/on/another/node"


def test_files_beside_the_config_travel_as_absolute_paths(config_file, monkeypatch, tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model").mkdir()
    config_file.write_text("gateway: {tokenizer: tokenizer.json}\nengine: {vllm: {model: model}}\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    config = read_arguments({"config": "../headway.yaml"}, "disaggregated")
    assert config.gateway.tokenizer is not None
    assert (elsewhere / config.gateway.tokenizer).samefile(tmp_path / "tokenizer.json")
    assert config.gateway.tokenizer.startswith("/")
    assert config.engine.vllm.model == f"{elsewhere}/../model"


def test_profiles_of_gpu_types_travel_as_absolute_paths_or_shipped_names(config_file, tmp_path):
    profile = '{"indexes": [[100], [1000]], "tputs": [[3.0]], "e2e": [[1.0]]}'
    (tmp_path / "l20.json").write_text(profile)
    config_file.write_text("routing: {gpu_profiles: {L20: l20.json, H100: qwen3-32b_h100_tp2}}\n")
    config = read_arguments({"config": str(config_file)}, "aggregated")
    assert config.routing.gpu_profiles == {
        "L20": str(tmp_path / "l20.json"),
        "H100": "qwen3-32b_h100_tp2",
    }


def test_a_shipped_profile_stays_a_name():
    config = read_arguments({"engine.profile": "llama-3.1-8b_h100_tp1"}, "disaggregated")
    assert config.engine.profile == "llama-3.1-8b_h100_tp1"


@pytest.mark.parametrize("module", ["serve_apps.disagg", "serve_apps.agg"])
def test_importing_does_nothing(module):
    program = (
        f"import sys, {module}; sys.exit(bool({{'ray', 'numpy', 'fastapi', 'pydantic'}} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
