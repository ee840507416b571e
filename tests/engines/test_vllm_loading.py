"""What vLLM refuses, as one line; nothing here needs vLLM."""

import pytest
from pydantic import BaseModel, ValidationError, model_validator

from headway.config import ConfigError, load_config
from serve_apps.engines.vllm.loading import LONGEST_LINE, one_line, refusals


class Refusing(BaseModel):
    """vLLM's configurations refuse as pydantic's do."""

    @model_validator(mode="after")
    def _refuse(self) -> "Refusing":
        raise ValueError("architectures ['X']\n are not supported")


def refused(error: Exception) -> str:
    with (
        pytest.raises(ConfigError) as caught,
        refusals(load_config(None, {"engine.kind": "vllm", "model": "m"})),
    ):
        raise error
    return str(caught.value)


def test_what_is_said_of_a_model_is_one_line_with_the_reason() -> None:
    with pytest.raises(ValidationError) as caught:
        Refusing()
    assert refused(caught.value) == "engine.vllm: m can't be loaded: architectures ['X'] are not supported"
    assert refused(OSError("no\nconfig")) == "engine.vllm: m can't be loaded: no config"


def test_a_reason_that_another_process_has_said_is_looked_up_in_its_log() -> None:
    said = refused(RuntimeError("Engine core initialization failed. See root cause above. Failed: {}"))
    assert said.endswith("its log, which is also this process's, says why")


def test_long_lists_are_cut_and_silence_has_a_name() -> None:
    line = one_line(ValueError("X, " * 1_000))
    assert len(line) < LONGEST_LINE + 10
    assert line.endswith(" ...")
    assert one_line(ValueError()) == "ValueError"
