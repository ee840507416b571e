"""Settings -> a loaded vLLM engine, or the reason why not, in one line.

vLLM finds out in this process what is wrong with arguments and architecture, and loads the weights in
another one, whose words are only in the log. What is seen of them from outside is checked before (`checks`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING

from pydantic import ValidationError

from headway.config import ConfigError, HeadwayConfig, VllmSettings
from headway.planning.types import Role
from serve_apps.engines.vllm.arguments import engine_arguments, kv_transfer, model_of
from serve_apps.engines.vllm.stats import Statistics, logger_of

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

LONGEST_LINE = 300
ELSEWHERE = "Engine core initialization failed"
"""How vLLM begins when the reason is in the other process's log."""


def load(config: HeadwayConfig, role: Role, statistics: Statistics) -> "AsyncLLM":
    """A loaded engine that reports to `statistics`. ConfigError with vLLM's reason."""
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    check_names(config.engine.vllm)
    transfer = KVTransferConfig(**kv_transfer(config, role))
    with refusals(config):
        arguments = AsyncEngineArgs(**engine_arguments(config, role), kv_transfer_config=transfer)
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

    known = {field.name for field in fields(AsyncEngineArgs)}
    for name in sorted(settings.args.keys() - known):
        raise ConfigError(f"engine.vllm.args: {name}: vLLM has no such engine argument")


def one_line(error: BaseException) -> str:
    """What an error says, without line breaks and lists without end."""
    said = str(error)
    if isinstance(error, ValidationError):
        found = error.errors(include_url=False, include_context=False, include_input=False)
        said = "; ".join(one["msg"].removeprefix("Value error, ") for one in found)
    line = " ".join(said.split()) or type(error).__name__
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]} ..."


@contextmanager
def refusals(config: HeadwayConfig) -> Iterator[None]:
    """What vLLM raises while it loads, as ConfigError in one line."""
    try:
        yield
    except (ValueError, RuntimeError, OSError, TypeError) as error:
        reason = one_line(error)
        if reason.startswith(ELSEWHERE):
            reason = "vLLM's engine process has ended; its log, which is also this process's, says why"
        raise ConfigError(f"engine.vllm: {model_of(config)} can't be loaded: {reason}") from error
