"""A real Prometheus of our own: loopback, free port, own data directory, ended by its pid."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.patience import PATIENCE_S
from tests.ports import free_port

PACKAGE = "prometheus"

CONFIG = """\
global:
  scrape_interval: 1s
  scrape_timeout: 1s
rule_files: [rules.yml]
scrape_configs:
  - job_name: headway
    static_configs:
      - targets: [{targets}]
"""


def need_prometheus() -> str:
    """The binary; without it the test is skipped by name, and in CI it fails."""
    binary = shutil.which("prometheus")
    if binary is None:
        missing = f"the Debian package {PACKAGE} is not installed"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return binary


def fill(folder: Path, lines: Iterable[str]) -> None:
    """Write samples (`name{labels} value seconds`) into the storage of a Prometheus that starts there later.

    Without types: those of a name stand together, or all are in the order of time.
    """
    need_prometheus()
    page = folder / "samples.txt"
    page.write_text("\n".join([*lines, "# EOF\n"]))
    make = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "--quiet"]
    subprocess.run([*make, page, folder / "data"], check=True)


class PrometheusProcess:
    """Scrapes `targets` (host:port) once a second. `stop` and `start` keep port and data.

    `rules`: a file of rules, of which each group is evaluated once a second too.
    """

    def __init__(
        self, directory: Path, *targets: str, rules: Path | None = None, retention: str = "15d"
    ) -> None:
        self._binary = need_prometheus()
        self._directory, self._retention = directory, retention
        self.port = free_port()
        self._config = directory / "prometheus.yml"
        self._config.write_text(CONFIG.format(targets=", ".join(f"'{target}'" for target in targets)))
        groups = {"groups": []} if rules is None else yaml.safe_load(rules.read_text(encoding="utf-8"))
        often = [{**group, "interval": "1s"} for group in groups["groups"]]
        (directory / "rules.yml").write_text(yaml.safe_dump({"groups": often}))
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [
            self._binary,
            f"--config.file={self._config}",
            f"--storage.tsdb.path={self._directory / 'data'}",
            f"--storage.tsdb.retention.time={self._retention}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.level=warn",
        ]
        with (self._directory / "prometheus.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._directory)
        self._until_ready()

    def stop(self, signum: int = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(signum)
            self._process.wait(timeout=PATIENCE_S)
            self._process = None

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an instant query: `metric`, and `value`, a time and a number as text."""
        question = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{question}", timeout=PATIENCE_S) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found

    def _until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            assert self._process is not None
            if self._process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"{self.url}/-/ready", timeout=1) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        log = (self._directory / "prometheus.log").read_text()
        raise AssertionError(f"Prometheus did not start:\n{log}")
