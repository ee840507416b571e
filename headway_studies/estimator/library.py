"""AI Configurator at arm's length: imported late, kept silent, its errors translated, its names checked.

The library logs, warns and prints freely, and some of its imports change the process's warning filters;
`quiet` undoes all of it. Nothing is downloaded: a model is one whose configuration the library carries, or a
local directory with `config.json`.
"""

import contextlib
import difflib
import functools
import importlib
import importlib.metadata
import importlib.resources
import io
import json
import logging
import pathlib
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from headway.profiling import RequestError
from headway_studies.estimator.request import (
    EngineSpec,
    ExtraNotInstalledError,
    NotMeasuredError,
    UnknownNameError,
)

DISTRIBUTION = "aiconfigurator"
CORE = "aiconfigurator_core"


def sdk(module: str) -> Any:  # noqa: ANN401 - a module without types
    """Import `module` of the SDK. Raises `ExtraNotInstalledError`."""
    return _import(f"{CORE}.sdk.{module}")


def version() -> str:
    """The installed version. Raises `ExtraNotInstalledError`."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError as error:
        raise _not_installed() from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the library's log lines, warnings and prints away from the user's terminal."""
    loggers = [logging.getLogger(name) for name in (DISTRIBUTION, CORE)]
    propagate = [logger.propagate for logger in loggers]
    sink, handler = io.StringIO(), logging.NullHandler()
    for logger in loggers:
        logger.propagate = False
        logger.addHandler(handler)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, before in zip(loggers, propagate, strict=True):
            logger.propagate = before
            logger.removeHandler(handler)


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn what the library raises for what it cannot model into a one-line `NotMeasuredError`."""
    errors = sdk("errors")
    expected = (
        errors.PerfDataNotAvailableError,
        errors.EmpiricalNotImplementedError,
        errors.SolNotImplementedError,
        NotImplementedError,
        ValueError,
        AssertionError,
        KeyError,
    )
    try:
        yield
    except expected as error:
        text = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        # In one line, and without paths of the installation.
        text = re.sub(r" (at|in|from) /\S+", "", " ".join(text.split()))
        raise NotMeasuredError(f"{what}: {text}") from error


def _import(name: str) -> Any:  # noqa: ANN401
    version()
    try:
        with quiet():
            return importlib.import_module(name)
    except ImportError as error:
        raise _not_installed() from error


def _not_installed() -> ExtraNotInstalledError:
    return ExtraNotInstalledError(
        "AI Configurator is not installed, which estimates need: pip install 'headway[estimate]'"
    )


# How each of our quantisation names sets the library's data types; what is not named stays native.
QUANTIZATIONS: Mapping[str, Mapping[str, str]] = {
    "bf16": {"gemm": "bfloat16", "moe": "bfloat16", "kvcache": "bfloat16", "fmha": "bfloat16"},
    "fp8": {"gemm": "fp8", "moe": "fp8"},
    "fp8-kv8": {"gemm": "fp8", "moe": "fp8", "kvcache": "fp8"},
    "fp8-block": {"gemm": "fp8_block", "moe": "fp8_block"},
}
MODELS_SHOWN = 10
MODEL_SUFFIX = "_config.json"


@functools.cache
def supported() -> dict[str, dict[str, tuple[str, ...]]]:
    """System → backend → database versions, for everything that has measurements, sorted."""
    database = sdk("perf_database")
    with quiet():
        found = database.get_supported_databases()
    return {
        system: {backend: tuple(found[system][backend]) for backend in sorted(found[system])}
        for system in sorted(found)
    }


def known_models() -> tuple[str, ...]:
    """Names of the models whose configuration the library carries, sorted."""
    sdk("errors")  # says how to install what is missing
    folder = importlib.resources.files(CORE) / "model_configs"
    stems = (
        file.name.removesuffix(MODEL_SUFFIX) for file in folder.iterdir() if file.name.endswith(MODEL_SUFFIX)
    )
    return tuple(sorted(stem.replace("--", "/", 1) for stem in stems if not stem.endswith("_hf_quant")))


def check_names(spec: EngineSpec) -> str:
    """Return the database version to use. Raises as `AiConfigurator` does."""
    version()
    systems = supported()
    _require("system", spec.system, systems)
    _require("backend", spec.backend, systems[spec.system], f" on {spec.system}")
    if spec.quantization is not None:
        _require("quantization", spec.quantization, QUANTIZATIONS)
    _require_model(spec.model)
    versions = systems[spec.system][spec.backend]
    if spec.backend_version is not None:
        _require("backend version", spec.backend_version, versions, f" of {spec.backend} on {spec.system}")
    return spec.backend_version or _current_version(spec, versions)


def build_model(spec: EngineSpec, tp: int) -> Any:  # noqa: ANN401 - the library's own type
    """The library's model of `spec` at tensor-parallel size `tp`; an MoE's experts are split likewise."""
    with quiet():
        config = sdk("config_builders").build_model_config(
            tp_size=tp, pp_size=1, attention_dp_size=1, moe_tp_size=tp, moe_ep_size=1, **data_types(spec)
        )
        return sdk("models").get_model(spec.model, config, spec.backend)


def data_types(spec: EngineSpec) -> dict[str, str]:
    """The library's keyword arguments for the quantisation of `spec`."""
    chosen = QUANTIZATIONS[spec.quantization] if spec.quantization else {}
    return {f"{part}_quant_mode": data_type for part, data_type in chosen.items()}


def _current_version(spec: EngineSpec, versions: tuple[str, ...]) -> str:
    """The version that the library calls current; the oldest listed where it calls none so."""
    database = sdk("perf_database")
    with quiet():
        return str(database.get_latest_database_version(spec.system, spec.backend) or versions[0])


def _require_model(model: str) -> None:
    known = known_models()
    if model in known:
        return
    local = pathlib.Path(model) / "config.json"
    if local.is_file():
        _require_configuration(local)
        return
    likeness = {name: difflib.SequenceMatcher(None, name.lower(), model.lower()).ratio() for name in known}
    nearest = sorted(known, key=lambda name: -likeness[name])[:MODELS_SHOWN]
    raise UnknownNameError(
        f"unknown model {model!r}; the nearest of the {len(known)} known: {', '.join(nearest)} "
        "(a local directory with a config.json also does)"
    )


def _require_configuration(path: pathlib.Path) -> None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RequestError(f"{path}: not a readable JSON file ({error})") from error
    if not isinstance(content, dict) or not isinstance(content.get("architectures"), list):
        raise RequestError(f"{path}: not a model configuration: 'architectures' is missing")


def _require(what: str, name: str, known: Mapping[str, object] | tuple[str, ...], where: str = "") -> None:
    if name not in known:
        raise UnknownNameError(f"unknown {what} {name!r}{where}; known: {', '.join(known)}")
