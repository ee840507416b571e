"""A safetensors file as far as anybody looks at it without loading: header and length."""

import json


def safetensors(data_bytes: int) -> bytes:
    """One tensor of bytes, whole."""
    tensor = {"dtype": "U8", "shape": [data_bytes], "data_offsets": [0, data_bytes]}
    header = json.dumps({"__metadata__": {"format": "pt"}, "weight": tensor}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(data_bytes)
