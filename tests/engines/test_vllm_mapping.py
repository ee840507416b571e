"""What of the vLLM engine is a function of values, or of files: nothing here needs vLLM."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from headway.config import ConfigError, load_config
from headway.engine.kinds import caches_prefixes
from headway.planning import Role
from serve_apps.engines.protocol import EngineRequest, KvHandle, LoadedAdapters, RequestAborted
from serve_apps.engines.vllm import loading
from serve_apps.engines.vllm.answers import prompt_only
from serve_apps.engines.vllm.arguments import check_reserved, engine_arguments, gpus_of, kv_transfer
from serve_apps.engines.vllm.engine import VllmEngine, decode_parameters
from serve_apps.engines.vllm.kv_events import tells_events
from serve_apps.engines.vllm.loading import quiet, reserve_port
from serve_apps.engines.vllm.requests import Attempt, Statistics, Streams
from tests.engines.safetensors import safetensors

VLLM = {"engine.kind": "vllm", "engine.vllm.device": "cpu", "model": "m"}


def asked(name: str = "r", **fields) -> EngineRequest:
    return EngineRequest(
        request_id=name, model="m", prompt=[1], input_tokens=1, **{"max_tokens": 9, **fields}
    )


# Arguments.


@pytest.mark.parametrize(
    ("settings", "caches", "tells"),
    [
        ({}, True, True),
        ({"engine.vllm.kv_events": False}, True, False),
        ({"engine.vllm.args": {"kv_events_config": {"enable_kv_cache_events": True}}}, True, False),
        ({"engine.vllm.args": {"enable_prefix_caching": True}}, True, True),
        ({"engine.vllm.args": {"enable_prefix_caching": False}}, False, False),
        ({"engine.prefix_cache_tokens": 0}, False, False),
        ({"engine.prefix_cache_tokens": 5000}, True, True),
    ],
)
def test_prefixes_are_cached_and_told_of_unless_the_settings_say_otherwise(settings, caches, tells):
    config = load_config(None, VLLM | settings)
    assert caches_prefixes(config) == caches
    assert [tells_events(config, role) for role in (Role.PREFILL, Role.MIXED)] == [tells] * 2
    assert not tells_events(config, Role.DECODE)


def test_settings_become_arguments_and_args_pass_through():
    settings = {
        "engine.vllm.model": "org/name",
        "engine.vllm.dtype": "float32",
        "engine.max_model_tokens": 2048,
        "engine.max_batch_size": 16,
        "engine.chunk_tokens": 512,
        "engine.vllm.args": {"enforce_eager": True},
    }
    assert engine_arguments(load_config(None, VLLM | settings), Role.DECODE) == {
        "model": "org/name",
        "served_model_name": ["m"],
        "dtype": "float32",
        "max_model_len": 2048,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 512,
        "tensor_parallel_size": 1,
        "disable_log_stats": True,
        "distributed_executor_backend": "uni",
        "use_tqdm_on_load": False,
        "enforce_eager": True,
    }
    defaults = engine_arguments(load_config(None, VLLM), Role.PREFILL)
    assert defaults["model"] == "m"
    assert not {"max_model_len", "max_num_seqs", "max_num_batched_tokens"} & defaults.keys()


def test_a_replica_splits_the_model_over_the_gpus_of_its_pool():
    gpus = {"engine.vllm.device": "cuda", "pools.prefill.gpus_per_replica": 4}
    config = load_config(None, VLLM | gpus)
    assert [gpus_of(config, role) for role in (Role.PREFILL, Role.DECODE)] == [4, 1]
    prefill, decode = (engine_arguments(config, role) for role in (Role.PREFILL, Role.DECODE))
    assert (prefill["tensor_parallel_size"], prefill["distributed_executor_backend"]) == (4, "ray")
    assert "distributed_executor_backend" not in decode
    assert gpus_of(load_config(None, VLLM | {"pools.prefill.gpus_per_replica": 4}), Role.PREFILL) == 0


def test_vllm_is_told_where_replicas_sleep():
    config = load_config(None, VLLM | {"pools.decode.sleepers": 1})
    prefill, decode = (engine_arguments(config, role) for role in (Role.PREFILL, Role.DECODE))
    assert decode["enable_sleep_mode"] is True
    assert "enable_sleep_mode" not in prefill


@pytest.mark.parametrize(
    ("level", "calls"),
    [
        (1, ["sleep 1", "wake_up None"]),
        (2, ["sleep 2", "wake_up ['weights']", "reload_weights", "wake_up ['kv_cache']"]),
    ],
)
def test_weights_that_were_dropped_are_read_before_there_is_a_kv_cache(level, calls):
    # A double: vLLM sleeps on GPUs alone. It notes what vLLM is asked for.
    asked_for = []

    class Llm:
        errored = False

        async def sleep(self, level):
            asked_for.append(f"sleep {level}")

        async def wake_up(self, tags=None):
            asked_for.append(f"wake_up {tags}")

        async def collective_rpc(self, method):
            asked_for.append(method)

    async def scenario() -> None:
        engine = VllmEngine.__new__(VllmEngine)
        engine._llm = Llm()
        await engine.sleep(level)
        await engine.wake()

    asyncio.run(scenario())
    assert asked_for == calls


@pytest.mark.parametrize(
    ("name", "setter"), [("max_num_seqs", "engine.max_batch_size"), ("pipeline_parallel_size", "Headway")]
)
def test_what_has_a_key_of_its_own_is_no_argument(name, setter):
    settings = load_config(None, VLLM | {"engine.vllm.args": {name: 1}}).engine.vllm
    with pytest.raises(ConfigError, match=rf"^engine.vllm.args: {name}: is set by {setter}, not here$"):
        check_reserved(settings)


@pytest.mark.parametrize(
    ("role", "kv_role"),
    [(Role.PREFILL, "kv_producer"), (Role.DECODE, "kv_consumer"), (Role.MIXED, "kv_both")],
)
def test_connectors_and_roles_of_the_transfer(role, kv_role):
    def transfer(**settings):
        return kv_transfer(load_config(None, VLLM | settings), role)

    nixl = transfer()
    assert (nixl["kv_connector"], nixl["kv_role"]) == ("NixlConnector", kv_role)
    assert (nixl["kv_buffer_device"], nixl["kv_load_failure_policy"]) == ("cpu", "recompute")
    disk = transfer(**{"engine.vllm.connector": "disk"})
    assert (disk["kv_connector"], disk["kv_role"]) == ("ExampleConnector", kv_role)
    assert disk["kv_connector_extra_config"] == {"shared_storage_path": "/tmp/headway-kv"}
    on_gpus = transfer(**{"engine.vllm.device": "cuda"})
    assert not {"kv_buffer_device", "kv_connector_module_path"} & on_gpus.keys()


# Sampling.


def test_the_model_suggests_and_the_client_decides():
    sampling = {"temperature": 0.0, "seed": 7, "top_p": 0.0}
    made = decode_parameters(
        asked(sampling=sampling, stop=("a", "b")), None, {"temperature": 0.6, "top_k": 20}
    )
    own = {"top_k": 20, "top_p": 1e-9, "max_tokens": 9, "stop": ["a", "b"]}
    assert made == {**sampling, **own}


def test_prefill_makes_one_token_and_keeps_the_kv_for_another_engine():
    made = prompt_only()
    transfer = made["extra_args"]["kv_transfer_params"]
    assert made["max_tokens"] == 1
    assert (transfer["do_remote_decode"], transfer["do_remote_prefill"]) == (True, False)
    transfer["remote_host"] = "x"
    assert prompt_only()["extra_args"]["kv_transfer_params"]["remote_host"] is None


@pytest.mark.parametrize(("transfer", "sent"), [({"remote_port": 1}, True), ({}, False)])
def test_decode_hands_the_transfer_on(transfer, sent):
    kv = KvHandle(request_id="r", engine_id="p", input_tokens=1, transfer=transfer)
    made = decode_parameters(asked(), kv, {})
    assert made.get("extra_args") == ({"kv_transfer_params": transfer} if sent else None)


# Requests that are here.


def begin(streams: Streams, name: str = "r", **where: bool) -> Attempt:
    return streams.begin(asked(name), **{"prefill_only": False, "prefilled_elsewhere": False, **where})


def test_an_attempt_that_is_ended_says_why_and_makes_room():
    streams, error = Streams(lambda: 0.0), RequestAborted("came again")
    first = begin(streams, prefilled_elsewhere=True)
    assert streams.end("r", error) is first
    assert first.ended is error
    second = begin(streams)
    assert second.inner_ids != first.inner_ids
    streams.leave(first)
    assert len(streams) == 1
    streams.leave(second)
    assert (len(streams), streams.end("r", error)) == (0, None)


def test_busy_while_anything_is_here():
    now = [10.0]
    streams = Streams(lambda: now[0])
    one = begin(streams, "a")
    now[0] = 12.0
    two = begin(streams, "b")
    streams.leave(one)
    now[0] = 13.0
    assert streams.busy_s() == 3.0
    streams.leave(two)
    now[0] = 20.0
    assert streams.busy_s() == 3.0


# Statistics.


def tokens(total: int, local: int, external: int, preempted: int = 0, output: int = 0) -> SimpleNamespace:
    prompt = SimpleNamespace(total=total, local_cache_hit=local, external_kv_transfer=external)
    return SimpleNamespace(
        prompt_token_stats=prompt, num_preempted_reqs=preempted, num_generation_tokens=output
    )


def test_totals_add_up_and_the_last_state_counts_only_for_requests_that_are_here():
    statistics = Statistics()
    statistics.record(SimpleNamespace(num_running_reqs=1, kv_cache_usage=0.25), tokens(100, 32, 60, output=1))
    statistics.record(SimpleNamespace(num_running_reqs=2, kv_cache_usage=0.5), None)
    statistics.record(None, tokens(50, 0, 50, preempted=1, output=3))
    stats = statistics.now(here=3, busy_s=1.5)
    assert (stats.running, stats.waiting, stats.kv_usage, stats.busy_s) == (2, 1, 0.5, 1.5)
    assert (stats.prompt_tokens, stats.cached_tokens, stats.external_tokens) == (150, 32, 110)
    assert (stats.engine, stats.preemptions, stats.output_tokens) == ("vllm", 1, 4)
    idle = statistics.now(here=0, busy_s=0.0)
    assert (idle.running, idle.waiting) == (0, 0)


@pytest.mark.parametrize(
    ("lora", "said"),
    [({}, {"max_loras": 3, "max_cpu_loras": 3}), ({"at_once": 2}, {"max_loras": 2, "max_cpu_loras": 3})],
)
def test_adapters_are_held_in_memory_where_a_batch_has_no_room_for_all(lora, said):
    adapters = {name: f"/{name}" for name in "abc"}
    config = load_config(None, VLLM | {"engine.vllm.adapters": adapters, "engine.lora": lora})
    arguments = engine_arguments(config, Role.DECODE)
    assert {name: value for name, value in arguments.items() if "lora" in name} == said | {
        "enable_lora": True
    }


def test_names_of_adapters_have_one_place():
    with pytest.raises(ConfigError, match=r"lora.names are those of simulated engines"):
        load_config(None, VLLM | {"engine.lora.names": ["a"]})


def test_the_adapters_of_requests_here_are_loaded():
    streams = Streams(adapters=LoadedAdapters(1, "ab"))
    assert streams.adapters.names == ("b",)
    attempt = streams.begin(asked(adapter="a"), prefill_only=False, prefilled_elsewhere=False)
    other = streams.begin(asked("other", adapter="b"), prefill_only=False, prefilled_elsewhere=False)
    assert Statistics().now(2, 0.0, streams.adapters).adapters == ("a", "b")
    streams.leave(attempt)
    streams.leave(attempt)
    assert streams.adapters.names == ("b",)
    streams.end("other", RequestAborted("gone"))
    streams.leave(other)
    assert streams.adapters.names == ("b",)


# The side channel's port.


def test_a_reserved_port_is_nobody_elses_but_may_be_listened_on():
    import socket

    with reserve_port() as first, reserve_port() as second:
        port = first.getsockname()[1]
        assert port != second.getsockname()[1]
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", port))
        with socket.socket() as engine:
            engine.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            engine.bind(("127.0.0.1", port))
            engine.listen()


# Quiet.


def test_quiet_holds_for_the_block_and_leaves_what_somebody_has_set(monkeypatch):
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    monkeypatch.delenv("NIXL_LOG_LEVEL", raising=False)
    with quiet():
        assert (os.environ["VLLM_LOGGING_LEVEL"], os.environ["NIXL_LOG_LEVEL"]) == ("DEBUG", "ERROR")
    assert os.environ["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert "NIXL_LOG_LEVEL" not in os.environ


# What is known beforehand.


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(loading, "find_spec", lambda name: object())


def check(model: Path | str, **settings) -> None:
    loading.check_model(load_config(None, VLLM | {"engine.vllm.model": str(model)} | settings))


def test_a_model_that_is_there_passes(installed, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (tmp_path / "model.safetensors").write_bytes(safetensors(100))
    check(tmp_path)
    check("meta-llama/Llama-3.1-8B")


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({}, "holds no config.json, so it is no model"),
        ({"config.json": "{"}, "config.json: Expecting"),
        ({"config.json": "[]"}, "config.json names no architectures"),
        ({"config.json": '{"architectures": ["X"]}'}, "holds no weights"),
    ],
)
def test_a_directory_that_is_no_model(installed, tmp_path, files, complaint):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=rf"^engine.vllm.model: {tmp_path}: {complaint}") as caught:
        check(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("model", ["/nowhere/model", "./model", "../out/model", "a/b/c"])
def test_a_directory_that_is_not_there(installed, model):
    with pytest.raises(ConfigError, match=r"there is no such directory$"):
        check(model)


def test_a_model_of_the_hub_must_be_in_the_cache_of_this_machine(installed):
    hub = load_config(None, VLLM | {"engine.vllm.model": "someone/nothing"})
    with pytest.raises(ConfigError, match=r"someone/nothing: is not on this machine; `hf download someone/"):
        loading.check_here(hub)


def test_what_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(loading, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^engine.kind: vllm is not installed here"):
        check("m")
    monkeypatch.setattr(loading, "find_spec", lambda name: None if name == "nixl" else object())
    with pytest.raises(ConfigError, match=r"^engine.vllm.connector: nixl is not installed here"):
        check("m")
    check("m", **{"engine.vllm.connector": "disk"})


def test_choosing_simulated_engines_imports_nothing_of_vllms():
    code = (
        "import sys; import serve_apps.engines, serve_apps.engines.vllm.engine, serve_apps.gateway.app\n"
        "print({'vllm', 'torch', 'transformers', 'ray'} & set(sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "set()\n"
