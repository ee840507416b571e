"""Self-signed certificates for loopback, made by openssl."""

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Pair:
    cert: Path
    key: Path

    @property
    def settings(self) -> dict[str, str]:
        return {"cert": str(self.cert), "key": str(self.key)}


def self_signed(folder: Path, name: str = "gateway", *, host: str = "127.0.0.1") -> Pair:
    """A certificate for the address, which is its own authority; written over one that is there."""
    pair = Pair(folder / f"{name}.crt", folder / f"{name}.pem")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-keyout", str(pair.key), "-out", str(pair.cert), "-days", "2", "-subj", f"/CN={name}"]
    subprocess.run([*command, "-addext", f"subjectAltName=IP:{host}"], check=True, capture_output=True)
    return pair
