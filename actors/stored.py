"""What the store holds: typed documents with a version and a checksum, no code.

    headway KIND VERSION CHECKSUM\\n    and MessagePack, whose types are those of the kind

The checksum is of the key too, so that a document under another key is none. Reading raises nothing for what
it finds: a document that cannot be read is as if it were not there. It is set aside whole under
`aside/SECONDS/KEY`, the latest SET_ASIDE of them, and a line in the log says so; `set_aside` lists them. Its
key stays, empty, so that a number in it is not given again.

Plain JSON is what Headway stored before there were checksums. It is read where its fields fit.
"""

import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar, get_origin

import msgspec
import numpy as np

from actors.store import Store

T = TypeVar("T")

MAGIC, ASIDE = "headway", "aside/"
MOST_BYTES, SET_ASIDE = 64 * 1024 * 1024, 20

logger = logging.getLogger(__name__)


class Kind(NamedTuple):
    """A kind of document: its name, the type of its content, and the version of that type."""

    name: str
    of: Any
    version: int = 1


class UnreadableError(Exception):
    """What is stored is no such document; the text says why."""


def sealed(kind: Kind, key: str, value: object) -> bytes:
    """The document's bytes under that key. TypeError for a value that is no plain data."""
    body = encoded(value)
    return f"{MAGIC} {kind.name} {kind.version} {_checksum(kind, key, body)}\n".encode() + body


def opened(kind: Kind, key: str, data: bytes) -> Any:  # noqa: ANN401 - what the kind says
    """The document's content. UnreadableError."""
    if len(data) > MOST_BYTES:
        raise UnreadableError(f"{len(data)} bytes, more than {MOST_BYTES}")
    if data[:1] in (b"{", b"["):
        return _guarded(lambda: msgspec.convert(json.loads(data), kind.of, dec_hook=_decoded))
    header, _, body = data.partition(b"\n")
    words = header[:200].decode("ascii", "replace").split(" ")
    if words[:2] != [MAGIC, kind.name] or len(words) != 4:
        raise UnreadableError(f"no document of kind {kind.name}")
    if words[2] != str(kind.version):
        raise UnreadableError(f"of version {words[2]}, and this Headway reads version {kind.version}")
    if words[3] != _checksum(kind, key, body):
        raise UnreadableError("the checksum is another")
    return decoded(body, kind.of)


def put(store: Store, kind: Kind, key: str, value: object) -> None:
    """Store the document. TypeError for a value that is no plain data."""
    store.put(key, sealed(kind, key, value))


def keep(store: Store, kind: Kind, key: str, value: object) -> None:
    """Store what counts in memory too. A store that takes nothing is logged: only a restart will miss it."""
    data = sealed(kind, key, value)
    try:
        store.put(key, data)
    except Exception as error:  # noqa: BLE001 - Ray's client raises what its transport raises
        logger.warning("%s is not stored, a restart would not know it: %s", key, error)


def read(store: Store, kind: Kind, key: str, use: Callable[[Any], T], *, own: bool = True) -> T | None:
    """What `use` makes of the document; None where there is none, or none that can be read and used.

    One that others write (not `own`) stays as it is.
    """
    data = store.get(key)
    if not data:
        return None
    try:
        return _guarded(lambda: use(opened(kind, key, data)))
    except UnreadableError as error:
        if own:
            put_aside(store, key, str(error))
        else:
            logger.warning("%s in the store cannot be read: %s", key, error)
        return None


def put_aside(store: Store, key: str, why: str) -> None:
    """Move what lies under a key out of the way, and log why."""
    place = f"{ASIDE}{int(time.time())}/{key}"
    logger.warning("%s in the store cannot be read and begins anew (%s); kept as %s", key, why, place)
    # A store that takes nothing must not end the actor that reads from it.
    with suppress(Exception):
        store.put(place, (store.get(key) or b"")[:MOST_BYTES])
        store.put(key, b"")
        for old in store.keys(ASIDE)[:-SET_ASIDE]:
            store.delete(old)


def set_aside(store: Store, since_s: float) -> dict[str, float]:
    """The keys of what could not be read since then, with the time, oldest first; Unix seconds."""
    found = (each.removeprefix(ASIDE).partition("/") for each in store.keys(ASIDE))
    return {key: float(at_s) for at_s, _, key in found if at_s.isdecimal() and float(at_s) >= since_s}


def encoded(value: object) -> bytes:
    """MessagePack. TypeError for a value that is no plain data."""
    return msgspec.msgpack.encode(value, enc_hook=_plain)


def decoded(body: bytes, of: Any) -> Any:  # noqa: ANN401 - any type
    """A value of that type. UnreadableError."""
    return _guarded(lambda: msgspec.msgpack.decode(body, type=of, dec_hook=_decoded))


def _guarded(make: Callable[[], T]) -> T:
    try:
        return make()
    except UnreadableError:
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:300]
        raise UnreadableError(f"{type(error).__name__}: {said}") from error


def _checksum(kind: Kind, key: str, body: bytes) -> str:
    named = f"{kind.name} {kind.version} {key}\n".encode()
    return blake2b(named + body, digest_size=16).hexdigest()


def _plain(value: object) -> object:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return [value.dtype.str, list(value.shape), value.tobytes()]
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no plain data")


def _decoded(of: Any, value: Any) -> Any:  # noqa: ANN401 - msgspec's hook
    if (get_origin(of) or of) is not np.ndarray:
        raise TypeError(f"{of} is no plain data")
    dtype, shape, data = value
    return np.frombuffer(data, dtype=np.dtype(dtype)).reshape(shape)
