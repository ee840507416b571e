"""Weights that are not whole are told by names, headers and sizes."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from serve_apps.engines.vllm.loading import INDEX, fault_of, safetensors_bytes
from tests.engines.safetensors import safetensors

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


def test_the_length_that_a_header_tells_of(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(WHOLE[: len(WHOLE) // 2])
    assert safetensors_bytes(file) == len(WHOLE)
