"""Text over HTTP, bounded in time and size: what sources read metrics with."""

import asyncio
import ssl
from pathlib import Path

import aiohttp

from actors.collector.exposition import SourceDownError

MOST_BYTES = 16 * 2**20
TEXT = {"Accept": "text/plain;version=0.0.4"}


class RefusedError(SourceDownError):
    """Nobody listens at the address: the process that did is gone."""


def bearer(token_file: str | None) -> dict[str, str]:
    """The header with the key in the file; none without a file. SourceDownError: it cannot be read."""
    if token_file is None:
        return {}
    try:
        token = Path(token_file).read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SourceDownError(f"metrics.token_file: {token_file}: {reason}") from None
    return {"Authorization": f"Bearer {token}"}


class TextReader:
    """GETs. All that HTTP does to us is `SourceDownError`."""

    def __init__(self, timeout_s: float, ca_file: str | None = None, token_file: str | None = None) -> None:
        self._timeout_s = timeout_s
        self._ca_file, self._token_file = ca_file, token_file
        self._session: aiohttp.ClientSession | None = None

    async def get(self, url: str) -> str:
        """The body."""
        if self._session is None:
            # A connection each read, as servers drop idle ones at moments of their own.
            self._session = self._opened()
        headers = {**TEXT, **bearer(self._token_file)}
        try:
            async with asyncio.timeout(self._timeout_s), self._session.get(url, headers=headers) as response:
                if response.status != 200:
                    raise SourceDownError(f"HTTP status {response.status}")
                body = bytearray()
                async for piece in response.content.iter_chunked(2**16):
                    body += piece
                    if len(body) > MOST_BYTES:
                        raise SourceDownError(f"over {MOST_BYTES} bytes")
                return body.decode("utf-8", "replace")
        except TimeoutError:
            raise SourceDownError(f"no answer within {self._timeout_s:g} s") from None
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
            # Their text is the whole address, with the credentials in it.
            raise SourceDownError("is not an http address") from None
        except aiohttp.ClientConnectorError as error:
            refused = isinstance(error.os_error, ConnectionRefusedError)
            kind = RefusedError if refused else SourceDownError
            raise kind(f"{type(error).__name__}: {str(error)[:200]}") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise SourceDownError(f"{type(error).__name__}: {str(error)[:200]}") from None

    def _opened(self) -> aiohttp.ClientSession:
        try:
            trusted = ssl.create_default_context(cafile=self._ca_file)
        except OSError as error:
            raise SourceDownError(f"metrics.ca_file: {self._ca_file}: {error.strerror or error}") from None
        connector = aiohttp.TCPConnector(force_close=True, limit=0, ssl=trusted)
        return aiohttp.ClientSession(connector=connector)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
