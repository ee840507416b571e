"""The connection of a gateway with a replica or the Router: frames on one TCP socket, once both are trusted.

    frame      length (4 bytes, big-endian), payload
    gateway    a nonce ──▶
               ◀── another nonce, and the proof of the end that is called
               the gateway's proof ──▶
    then       pickled lists of messages both ways
    proof      HMAC-SHA256 of the sending end and both nonces, by a secret that travels in Ray's calls only

Until the other end has proved itself, nothing from it is unpickled, and its frames may be as long as a proof.
It has some seconds for that. What is sent is not encrypted, as what Serve's own handles send is not.

All that is posted in one pass of the event loop is one frame: an engine that batches produces a token for
each of its requests at the same moment, and a frame costs as much as some tokens.
"""

import asyncio
import hmac
import pickle
import secrets
import socket
import struct
from collections.abc import Callable
from contextvars import Context
from typing import Any, NamedTuple, TypeVar

LENGTH = struct.Struct("!I")
NONCE_BYTES, PROOF_BYTES, SECRET_BYTES = 16, 32, 32
CALLING, CALLED = b"calling", b"called"
PROOF_WITHIN_S = 20.0
LONGEST = 2**30
"""Bytes of a frame: above all the bodies that a gateway takes at once."""

# A host that is gone sends no end. Seconds of silence, and between probes; milliseconds without an answer.
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 20_000}


class Address(NamedTuple):
    """Where a `SecretListener` listens, and its secret."""

    host: str
    port: int
    secret: bytes


class Wire(asyncio.Protocol):
    """One end. `received` gets the messages; `connection_ended` is called once."""

    def __init__(self, secret: bytes) -> None:
        self._secret, self._nonce = secret, secrets.token_bytes(NONCE_BYTES)
        self._buffer, self._open, self.ended = bytearray(), False, False
        self._longest = NONCE_BYTES + PROOF_BYTES
        self._out: list[object] = []
        self.transport: asyncio.Transport
        self.trusted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the other end has shown its proof. ConnectionError where it does not."""
        # Where nothing waits for it, asyncio would log an exception that was never retrieved.
        self.trusted.add_done_callback(lambda future: future.cancelled() or future.exception())

    def received(self, messages: Any) -> None:  # noqa: ANN401 - whatever the other end posted
        """The messages of one frame."""
        raise NotImplementedError

    def connection_ended(self) -> None:
        """The connection has ended."""
        raise NotImplementedError

    def _shown(self, frame: bytes) -> None:
        """A frame of an end that is not trusted yet. ConnectionError."""
        raise NotImplementedError

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection, of which proof is expected."""
        self.transport = transport
        end = transport.get_extra_info("socket")
        end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if (option := getattr(socket, name, None)) is not None:  # Linux has all of them
                end.setsockopt(socket.IPPROTO_TCP, option, value)
        self._due = asyncio.get_running_loop().call_later(PROOF_WITHIN_S, self._refuse, "no proof in time")

    def connection_lost(self, error: Exception | None) -> None:
        """It is gone."""
        self._due.cancel()
        if not self.trusted.done():
            self.trusted.set_exception(ConnectionError(f"the connection ended: {error or 'closed'}"))
        self.ended = True
        self.connection_ended()

    def data_received(self, data: bytes) -> None:
        """Some bytes: all the frames that are whole."""
        buffer, begin = self._buffer, 0
        buffer += data
        while len(buffer) - begin >= LENGTH.size and not self.transport.is_closing():
            (length,) = LENGTH.unpack_from(buffer, begin)
            if length > self._longest:
                self._refuse(f"a frame of {length} bytes")
                return
            end = begin + LENGTH.size + length
            if len(buffer) < end:
                break
            frame = bytes(memoryview(buffer)[begin + LENGTH.size : end])
            begin = end
            self._take(frame)
        del buffer[:begin]

    def post(self, message: object) -> None:
        """Send a message with the next frame; it waits in memory where the other end is slow."""
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out.append(message)

    def close(self) -> None:
        """End the connection after what was posted."""
        self._flush()
        self.transport.close()

    def _flush(self) -> None:
        out, self._out = self._out, []
        if not out or self.transport.is_closing():
            return
        self._send(pickle.dumps(out, pickle.HIGHEST_PROTOCOL))

    def _take(self, frame: bytes) -> None:
        if self._open:
            self.received(pickle.loads(frame))
            return
        try:
            self._shown(frame)
        except ConnectionError as error:
            self._refuse(str(error))

    def _send(self, payload: bytes) -> None:
        self.transport.writelines((LENGTH.pack(len(payload)), payload))

    def _trust(self) -> None:
        self._due.cancel()
        self._open, self._longest = True, LONGEST
        self.trusted.set_result(None)

    def _refuse(self, why: str) -> None:
        if not self.trusted.done():
            self.trusted.set_exception(ConnectionError(why))
        self.transport.abort()

    def _proof(self, who: bytes, calling: bytes, called: bytes) -> bytes:
        return hmac.digest(self._secret, who + calling + called, "sha256")


class ClientConnection(Wire):
    """The end that connects; messages may be sent once `trusted` is done."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Send the nonce."""
        super().connection_made(transport)
        self._send(self._nonce)

    def _shown(self, frame: bytes) -> None:
        nonce, proof = frame[:NONCE_BYTES], frame[NONCE_BYTES:]
        if not hmac.compare_digest(proof, self._proof(CALLED, self._nonce, nonce)):
            raise ConnectionError("the listener is not the one of this address: it does not know the secret")
        self._send(self._proof(CALLING, self._nonce, nonce))
        self._trust()


class ServerConnection(Wire):
    """The end that was connected to."""

    _theirs = b""

    def _shown(self, frame: bytes) -> None:
        if not self._theirs:
            if len(frame) != NONCE_BYTES:
                raise ConnectionError("no nonce")
            self._theirs = frame
            self._send(self._nonce + self._proof(CALLED, frame, self._nonce))
        elif hmac.compare_digest(frame, self._proof(CALLING, self._theirs, self._nonce)):
            self._trust()
        else:
            raise ConnectionError("a wrong secret")


End = TypeVar("End", bound=ClientConnection)


class SecretListener:
    """Listens on a free port of `host()`, from the first call of `address` until it is closed."""

    def __init__(self, host: Callable[[], str], end: Callable[[bytes], ServerConnection]) -> None:
        """`end(secret)` makes the server's end of a connection."""
        self._host, self._end, self._secret = host, end, secrets.token_bytes(SECRET_BYTES)
        self._listening: asyncio.Task[asyncio.Server] | None = None

    @property
    def begun(self) -> bool:
        """Whether the address was ever asked for."""
        return self._listening is not None

    async def address(self) -> Address:
        """Where it listens."""
        if self._listening is None:
            # In a context of its own: Serve cancels with a request whatever was begun in its context.
            self._listening = asyncio.create_task(self._listen(), context=Context())
        server = await asyncio.shield(self._listening)
        host, port, *_ = server.sockets[0].getsockname()
        return Address(host, port, self._secret)

    async def close(self) -> None:
        """Stop accepting connections; existing ones stay open."""
        if self._listening is not None:
            (await self._listening).close()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.get_running_loop().create_server(
            lambda: self._end(self._secret), self._host(), 0
        )


async def connect(address: Address, end: Callable[[bytes], End]) -> End:
    """A connection to that address, once both ends trust each other. OSError."""
    host, port, secret = address
    made = end(secret)
    transport, _ = await asyncio.get_running_loop().create_connection(lambda: made, host, port)
    try:
        await made.trusted
    except BaseException:
        transport.abort()
        raise
    return made
