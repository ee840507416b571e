"""Engine kinds: the declaration of an inference engine, which Headway reads before it makes one.

A kind is a declaration `EngineKind`, found by the name in `engine.kind` (`headway.config.ENGINES`): built in,
or by the entry point group `headway.engines` of an installed package. Code asks the declaration and never
the name: builders for GPUs, the gateway for tokenizer and metrics, the command line for checks, the
planner's status whether a model runs. Engines themselves, and the protocol that they follow, are in
`serve_apps.engines`; a declaration imports them only when a function of it is called.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from headway.config import ENGINES, ConfigError, HeadwayConfig, Role, Settings
from headway.config.base import describe
from headway.extensions import ExtensionError

SHARED_GPU = "shared_gpu"
"""Ray's name for the GPUs of a node on which engines of several GPUs take turns.

Ray counts them, and the engines choose (`serve_apps.sleeping.shared_gpus`). Of its own GPUs Ray does not keep
the parts of one engine apart: it gives a part of the GPU that has the least room for it, so four halves in a
placement group are two whole GPUs (Ray 2.60, whatever the strategy). No size of parts changes that. One that
finds room beside another engine's finds room beside its own, and parts above a half, which never meet, leave
no room for a second engine.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineResources:
    """The GPUs of one replica as Ray is asked for them.

    `gpus` are held by the replica's actor; None: the kind never has any, 0: these settings need none.
    `bundles` are those of a placement group on one node, for engines that start actors of their own.
    """

    gpus: float | None = None
    bundles: Sequence[Mapping[str, float]] = ()


def _none(*_: object) -> None:
    """The default of whatever a kind does not declare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    """The declaration of one kind. The checks raise ConfigError, one line that names the setting."""

    make: Callable[[HeadwayConfig, Role, str], Any]
    """Settings, role and an id unique in the cluster → a `serve_apps.engines.protocol.Engine` that can serve.

    ConfigError or ProfileError. It may take as long as a model takes to load."""
    simulated: bool = False
    """True if no model runs: the status document, `/v1/models` and metrics say so."""
    elsewhere: bool = False
    """True if others start these engines and route to them: Headway only plans for them."""
    answers: bool = False
    """True if engines answer what a client sent themselves (`EngineRequest.call`), bytes for bytes; else
    answers are made of the text that they make (`serve_apps.engines.answering`)."""
    options: type[Settings] | None = None
    """The model of the section `engine.options`; None: the kind takes none."""
    file_settings: tuple[str, ...] = ()
    """Dotted settings that may name a file or a directory beside the configuration file."""
    resources: Callable[[HeadwayConfig, Role], EngineResources] = lambda _config, _role: EngineResources()
    """The needs of one replica of that role."""
    model: Callable[[HeadwayConfig], str | None] = _none
    """The model whose tokenizer and chat template read prompts, a directory or a name on the hub.

    None: prompts stay text, and their length is counted by `gateway.tokenizer` or estimated."""
    adapters: Callable[[HeadwayConfig], Sequence[str]] = lambda _config: ()
    """Further model names that clients may ask for: adapters of the model."""
    caches_prefixes: Callable[[HeadwayConfig], bool] = lambda _config: False
    """True if engines keep prefixes without `engine.prefix_cache_tokens`: as many as their KV cache holds."""
    sleeps: Callable[[HeadwayConfig], str] = lambda config: f"engine.kind {config.engine.kind} does not sleep"
    """Why its engines do not sleep as `serve_apps.engines.protocol.SleepingEngine`s; empty: they do."""
    collector: Callable[[str, Any, Any], Any] | None = None
    """Further metrics of a gateway: (model, `Traffic`, `GatewayMetrics`) → a Prometheus collector."""
    check_settings: Callable[[HeadwayConfig], None] = _none
    """Faults of the settings, and of files on this machine, which need not be one that serves."""
    check_here: Callable[[HeadwayConfig], None] = _none
    """Faults that keep an engine from starting on this machine, as far as they are seen in no time."""
    check_accepted: Callable[[HeadwayConfig], None] = _none
    """Faults that the engine's own code finds before it loads a model; may import that code."""
    quiet: Callable[[], AbstractContextManager[None]] = nullcontext
    """For commands, whose output is their own: an engine that is loaded in the block only logs errors."""
    profile_settings: Callable[[str | None, int], Mapping[str, Any]] = lambda _model, _gpus: {}
    """`headway profile`: --model and tensor parallelism → settings of the one replica to measure."""


def engine_kind(config: HeadwayConfig) -> EngineKind:
    """The declaration that `engine.kind` names. ConfigError: there is none, or it takes other options."""
    name = config.engine.kind
    try:
        kind = ENGINES.load(name)
    except ExtensionError as error:
        raise ConfigError(f"engine.kind: {error}") from error
    if not isinstance(kind, EngineKind):
        raise ConfigError(f"engine.kind: {name!r} is declared by {type(kind).__name__}, not by an EngineKind")
    if config.engine.options or kind.options is not None:
        engine_options(config, kind)
    return kind


def node_needs(config: HeadwayConfig, role: Role) -> Mapping[str, float]:
    """What a replica of that role takes of its node by Ray's names, GPUs among them if it asks for any."""
    asked = engine_kind(config).resources(config, role)
    gpus = (asked.gpus or 0) + sum(bundle.get("GPU", 0) for bundle in asked.bundles)
    taken = shared_gpus_asked(config, role) or ({"GPU": float(gpus)} if gpus else {})
    return {**config.pools[role.value].resources, **taken}


def engines_per_gpu(config: HeadwayConfig, role: Role) -> int:
    """Engines of that role that take turns on a GPU."""
    return config.engine.sleep.per_gpu if config.pools[role.value].sleepers else 1


def shared_gpus_asked(config: HeadwayConfig, role: Role) -> Mapping[str, float]:
    """What Ray is asked for instead of GPUs, for an engine that takes turns on several."""
    gpus, engines = engine_kind(config).resources(config, role).gpus or 0, engines_per_gpu(config, role)
    return {SHARED_GPU: gpus / engines} if engines > 1 and gpus > 1 else {}


def check_sleepers(config: HeadwayConfig) -> None:
    """ConfigError where `pools.NAME.sleepers` asks for what the engines, or turns on GPUs, do not allow."""
    for name, pool in config.pools.items():
        if not pool.sleepers:
            continue
        kind = engine_kind(config)
        if why := kind.sleeps(config):
            raise ConfigError(f"pools.{name}.sleepers: {why}")
        if engines_per_gpu(config, Role(name)) > 1 and kind.resources(config, Role(name)).bundles:
            raise ConfigError(
                f"pools.{name}.sleepers: engines that start actors of their own take no turns on GPUs: "
                "needs engine.sleep.per_gpu: 1"
            )


def caches_prefixes(config: HeadwayConfig) -> bool:
    """True if replicas keep prefixes, by the settings or by the kind of engine. ConfigError."""
    tokens = config.engine.prefix_cache_tokens
    return engine_kind(config).caches_prefixes(config) if tokens is None else tokens > 0


def engine_options(config: HeadwayConfig, kind: EngineKind) -> Settings:
    """The section `engine.options`, as the kind declares it. ConfigError names the key."""
    model = kind.options or Settings
    try:
        return model.model_validate(config.engine.options)
    except ValidationError as error:
        key, fault = describe(error, model.model_json_schema())
        raise ConfigError(f"engine.options.{key}: {fault}") from error
