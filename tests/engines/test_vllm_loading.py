"""A model as it is seen before vLLM loads it, and what vLLM refuses, in one line."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError, model_validator

from headway.config import ConfigError, load_config
from serve_apps.engines.vllm.loading import (
    INDEX,
    LONGEST_LINE,
    fault_of,
    one_line,
    refusals,
)
from tests.engines.safetensors import safetensors


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


def test_a_refusal_is_one_line_with_the_reason() -> None:
    with pytest.raises(ValidationError) as caught:
        Refusing()
    assert refused(caught.value) == "engine.vllm: m can't be loaded: architectures ['X'] are not supported"
    assert refused(OSError("no\nconfig")) == "engine.vllm: m can't be loaded: no config"
    elsewhere = refused(RuntimeError("Engine core initialization failed. See root cause above. Failed: {}"))
    assert elsewhere.endswith("its log, which is also this process's, says why")


def test_long_lists_are_cut_and_silence_has_a_name() -> None:
    line = one_line(ValueError("X, " * 1_000))
    assert len(line) < LONGEST_LINE + 10
    assert line.endswith(" ...")
    assert one_line(ValueError()) == "ValueError"


WHOLE = safetensors(1_000)
PART = "model-00001-of-00002.safetensors"


def index(*names: str) -> bytes:
    return json.dumps({"weight_map": {f"layer{place}": name for place, name in enumerate(names)}}).encode()


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"model.safetensors": WHOLE}, None),
        ({"a.safetensors": safetensors(0), "b.safetensors": WHOLE}, None),
        ({PART: WHOLE, INDEX: index(PART, PART)}, None),
        ({"model.gguf": b"whatever"}, None),
        ({}, "holds no weights"),
        ({"model.safetensors": WHOLE[:-1]}, f"has {len(WHOLE) - 1:,} bytes, but its header tells of"),
        ({"model.safetensors": WHOLE + b"0"}, f"but its header tells of {len(WHOLE):,}"),
        ({"model.safetensors": WHOLE[:40]}, "model.safetensors is no safetensors file"),
        ({"model.safetensors": b""}, "model.safetensors is no safetensors file"),
        ({"model.safetensors": b"version https://git-lfs.github.com/spec/v1"}, "is no safetensors file"),
        ({"model.safetensors": (2).to_bytes(8, "little") + b"[]"}, "is no safetensors file"),
        ({PART: WHOLE, INDEX: index(PART, "other.safetensors")}, "names other.safetensors, which is not"),
        ({PART: WHOLE, INDEX: b"{}"}, f"{INDEX} can't be read: KeyError"),
    ],
)
def test_what_is_wrong_with_weights(files: Mapping[str, bytes], fault: str | None, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    found = fault_of(tmp_path)
    assert found is None if fault is None else found is not None and fault in found
