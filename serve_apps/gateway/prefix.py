"""The keys of a prompt's prefix blocks: equal keys, equal prompts up to there.

    key(i) = blake2b(key(i − 1), block i),  key(−1) empty for text, else b"ids";  63 bits

A block is `block_tokens` token ids, or of text four times as many bytes, the estimate of `tokens`. Only whole
blocks count. Keys are the same in every process.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from serve_apps.gateway.tokens import BYTES_PER_TOKEN

ID_BYTES = array("I").itemsize


def prefix_blocks(prompt: str | Sequence[int], block_tokens: int) -> tuple[int, ...]:
    """The keys of the whole blocks of a prompt, in order."""
    if isinstance(prompt, str):
        data, size, digest = prompt.encode(), BYTES_PER_TOKEN * block_tokens, b""
    else:
        data, size, digest = array("I", prompt).tobytes(), ID_BYTES * block_tokens, b"ids"
    keys = []
    for start in range(0, len(data) - size + 1, size):
        digest = blake2b(digest + data[start : start + size], digest_size=8).digest()
        keys.append(int.from_bytes(digest, "little") >> 1)
    return tuple(keys)
