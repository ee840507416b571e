"""The profile that is served: the measured one, refined by what replicas report (`profiling.refinement`).

What was learnt is in the store after each report, for one measured profile; another one begins anew. Policies
are made anew with each profile: so there is another one only where a ratio has moved by more than 2 %, or a
cell came or went.
"""

import json
import logging
from collections.abc import Iterable
from dataclasses import astuple
from typing import Any

from actors.store import Store
from headway.profiling import Phase
from headway.profiling.observed_latency import LatencyReport
from headway.profiling.refinement import CellMemory, Refinement, RefinementCell, learn, moved, refined
from interp import Profile

logger = logging.getLogger(__name__)

KEY = "interpolator/refinement"


class Refining:
    """What traffic has shown of `measured`, whose checksum is `version`. `profile` is the one to serve."""

    def __init__(self, store: Store, version: int, measured: Profile) -> None:
        self._store, self._version, self._measured = store, version, measured
        self._learnt = self._served = self._restored()
        self.profile = refined(measured, self._served)

    def learn(self, reports: Iterable[LatencyReport]) -> bool:
        """Take reports; whether there is another profile to serve."""
        learnt = learn(self._learnt, self._measured, reports)
        if learnt is self._learnt:
            return False
        self._learnt = learnt
        self._store.put(KEY, _encoded(learnt, self._version))
        if not moved(self._served, learnt):
            return False
        self._served, self.profile = learnt, refined(self._measured, learnt)
        return True

    def document(self) -> dict[str, Any]:
        """Version, cells that traffic came to, those that count, and the version that is served."""
        learnt, served = self._learnt, self._served
        return {
            "version": learnt.version,
            "cells": len(learnt.cells),
            "sure": len(learnt.sure),
            "served_version": served.version if served.sure else 0,
        }

    def _restored(self) -> Refinement:
        try:
            stored = json.loads(self._store.get(KEY) or b"{}")
            if stored.get("profile") == self._version:
                return _decoded(stored)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("the stored refinement cannot be read, it begins anew: %s", error)
        return Refinement()


def _encoded(refinement: Refinement, profile: int) -> bytes:
    rows = [(*cell, *astuple(memory)) for cell, memory in refinement.cells.items()]
    return json.dumps({"profile": profile, "version": refinement.version, "cells": rows}).encode()


def _decoded(stored: dict[str, Any]) -> Refinement:
    cells = {
        RefinementCell(Phase(phase), tokens, kv): CellMemory(
            count=count, log_ratio=log_ratio, log_tokens=log_tokens, kv_usage=kv_usage
        )
        for phase, tokens, kv, count, log_ratio, log_tokens, kv_usage in stored["cells"]
    }
    return Refinement(version=stored["version"], cells=cells)
