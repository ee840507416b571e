"""Whether the weights in a directory are whole, seen from names, headers and sizes; no tensor is read.

    safetensors file = 8 bytes N, little endian | N bytes of JSON: name -> data_offsets [begin, end] | data
    size = 8 + N + the largest end

By the documentation of the safetensors format. A download that was broken off is too short, a pointer of
Git LFS is no such file at all. An index names the files that the weights are spread over. Of other formats
(.bin, .pt, .gguf) only their presence is known.
"""

import json
from collections.abc import Iterator
from pathlib import Path

WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")
INDEX = "model.safetensors.index.json"
LENGTH_BYTES = 8
MOST_HEADER_BYTES = 100_000_000
"""As much as the format's own readers take."""


def fault_of(directory: Path) -> str | None:
    """What is wrong with the weights, None where nothing is seen to be."""
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
    yield from (f"{INDEX} names {name}, which is not there" for name in sorted(named - _names(directory)))
    for file in sorted(directory.glob("*.safetensors")):
        try:
            expected, found = safetensors_bytes(file), file.stat().st_size
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            yield f"{file.name} is no safetensors file"
            continue
        if found != expected:
            yield f"{file.name} has {found:,} bytes, but its header tells of {expected:,}"


def safetensors_bytes(file: Path) -> int:
    """How long a safetensors file is by its header; any of several errors where it has none."""
    with file.open("rb") as content:
        length = int.from_bytes(content.read(LENGTH_BYTES), "little")
        if not 0 < length <= MOST_HEADER_BYTES:
            raise ValueError(f"a header of {length} bytes")
        header = json.loads(content.read(length))
    ends = (tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__")
    return LENGTH_BYTES + length + max(ends, default=0)


def _names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}
