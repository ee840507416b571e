import re
import subprocess
import sys
from typing import Any

import pytest

from actors.routing_actors import needs_router
from headway.config import ConfigError
from headway.planning import Role
from serve_apps.arguments import read_arguments, read_control_arguments
from serve_apps.engines import make_engine

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


@pytest.mark.parametrize("module", ["serve_apps.disagg", "serve_apps.agg"])
def test_importing_does_nothing(module):
    program = (
        f"import sys, {module}; sys.exit(bool({{'ray', 'numpy', 'fastapi', 'pydantic'}} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


PROMETHEUS = {"source": "prometheus", "url": "http://prometheus:9090", "preset": "vllm"}
FLEET = {
    "metrics": PROMETHEUS,
    "connector": {"kind": "virtual"},
    "pools": {"mixed": {"max_replicas": 4}},
}
SPLIT = {"pools": {"prefill": {}, "decode": {}}}
ROLES = {"role_labels": {"prefill": {"pod": "~p-.*"}, "decode": {"pod": "~d-.*"}}}
ENGINES = {"source": "engines", "preset": "vllm", "engines": {"mixed": {"addresses": ["127.0.0.1:8000"]}}}


@pytest.mark.parametrize("change", [{}, {"metrics": ENGINES}, {**SPLIT, "metrics": {**PROMETHEUS, **ROLES}}])
def test_a_control_plane_alone_takes_the_fleet_of_others(change: dict[str, Any]) -> None:
    config = read_control_arguments({**FLEET, **change})
    assert config.engine.kind == "external"
    assert set(config.pools) == set({**FLEET, **change}["pools"])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"metrics": {}}, "metrics.source: gateway needs metrics.url"),
        ({"connector": {}}, "connector.kind: ray_serve scales the replicas of headway up"),
        ({"engine": {"profile": "nowhere"}}, "engine.profile: 'nowhere' is neither"),
        (SPLIT, "metrics.role_labels: needed, as each request passes a prefill and a decode engine of vllm"),
        ({**SPLIT, "metrics": ENGINES}, "metrics.engines: has mixed, but pools has prefill and decode"),
        ({"metrics": {**PROMETHEUS, **ROLES}}, "metrics.role_labels: has prefill and decode, but pools has"),
    ],
)
def test_what_cannot_work_alone_is_one_line(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)) as caught:
        read_control_arguments({**FLEET, **change})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"metrics": PROMETHEUS}, "metrics.preset: vllm names the metrics of a fleet that runs elsewhere"),
        ({"engine": {"kind": "external"}}, "engine.kind: external engines are not started here"),
    ],
)
@pytest.mark.parametrize("topology", ["disaggregated", "aggregated"])
def test_no_simulated_engines_in_place_of_a_fleet(given: dict[str, Any], told: str, topology: Any) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)) as caught:
        read_arguments(given, topology)
    assert "headway attach" in str(caught.value)


def test_external_engines_have_no_router_and_no_engine() -> None:
    config = read_control_arguments({**FLEET, "routing": {"profile": "slo"}})
    assert not needs_router(config)
    with pytest.raises(ConfigError, match="started by others"):
        make_engine(config, Role.MIXED, "m0")
