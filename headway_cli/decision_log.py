"""The decision log as the control API serves it."""

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from headway_cli.control import ControlClient

Record = Mapping[str, Any]
PAGE = 100
MOST = 1000
"""Decisions in one answer."""


class DecisionLog:
    """Reads decisions; what the server lacks is a CliError of the client."""

    def __init__(self, server: ControlClient) -> None:
        self._server = server

    def one(self, decision_id: int) -> Record:
        """The decision with this id."""
        found: Record = self._server.get(f"/v1/control/decisions/{decision_id}")
        return found

    def after(self, decision_id: int, limit: int = PAGE) -> list[Record]:
        """The first `limit` decisions with higher ids, in order."""
        after = f"after={decision_id}&" if decision_id >= 0 else ""
        rows: list[Record] = self._server.get(f"/v1/control/decisions?{after}limit={limit}")["decisions"]
        return rows

    def every(self) -> list[Record]:
        """All decisions that are still kept, in order."""
        found: list[Record] = []
        while page := self.after(found[-1]["id"] if found else -1):
            found += page
        return found

    def last(self, count: int) -> list[Record]:
        """The last `count` decisions, in order."""
        newest = self._server.get("/v1/control/status").get("last_decision")
        if newest is None:
            return []
        return self.after(newest["id"] - min(count, MOST), MOST)[-count:]


def follow_log(log: DecisionLog, after: int, show: Callable[[Record], None], poll_s: float) -> None:
    """Show decisions as they are made, for ever."""
    while True:
        for record in log.after(after):
            show(record)
            after = record["id"]
        sys.stdout.flush()
        time.sleep(poll_s)
