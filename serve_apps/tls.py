"""The certificate of a gateway that serves HTTPS, and how it is renewed without a restart.

`context` stays the same object for as long as the server runs; new connections get the newest certificate.
Both files are looked at every second. A pair that does not fit together, as in the middle of a renewal, is
left out until it does; the certificate before it goes on, which is logged.
"""

import asyncio
import logging
import ssl
from pathlib import Path

from headway.config import ConfigError, TlsSettings

logger = logging.getLogger("ray.serve")

LOOK_EVERY_S = 1.0


class Certificate:
    """Certificate and key in force. ConfigError, one line, where they cannot be used."""

    def __init__(self, settings: TlsSettings) -> None:
        self._files = Path(settings.cert), Path(settings.key)
        self._stamp = self._look()
        self.context = self._loaded()
        """For the server's connections."""

    def renew(self) -> bool:
        """Take up files that have changed; True if there is another certificate now."""
        if (stamp := self._look()) == self._stamp:
            return False
        self._stamp = stamp
        try:
            # Into a context of its own first: one that fails half way would be left with halves of both.
            self._loaded()
            self._load(self.context)
        except ConfigError as error:
            logger.warning("the certificate stays as it was: %s", error)
            return False
        logger.info("gateway: %s was read again", self._files[0])
        return True

    async def follow(self) -> None:
        """Renew until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.renew()

    def _loaded(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        cert, key = self._files
        for name, file in (("cert", cert), ("key", key)):
            if not file.is_file():
                raise ConfigError(f"gateway.tls.{name}: {file}: there is no such file")
        try:
            # The password is given so that a protected key is refused instead of asked for at a terminal.
            context.load_cert_chain(cert, key, password="")
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise ConfigError(f"gateway.tls: {cert} with {key}: {reason}") from error

    def _look(self) -> tuple[object, ...]:
        stamps: list[object] = []
        for file in self._files:
            try:
                found = file.stat()
                stamps.append((found.st_mtime_ns, found.st_size, found.st_ino))
            except OSError:
                stamps.append(None)
        return tuple(stamps)
