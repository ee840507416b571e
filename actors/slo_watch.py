"""Gateways and the Router go by the SLO that the planner has now: they read what the planner stores.

The planner writes its effective targets under one key of the store; a change reaches whoever follows within
`PERIOD_S`. A store that does not answer leaves the targets as they are.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

from actors.planning.settings import KEY
from actors.store import Store
from headway.config import SloSettings

PERIOD_S = 1.0

log = logging.getLogger(__name__)

Take = Callable[[float, float], None]
"""Takes TTFT and ITL targets, in seconds."""


async def follow_slo(store: Store, take: Take, period_s: float = PERIOD_S) -> None:
    """Until cancelled, hand over the targets whenever they have changed."""
    known: SloSettings | None = None
    while True:
        slo = await asyncio.to_thread(_stored, store)
        if slo is not None and slo != known:
            take(slo.ttft_s, slo.itl_s)
            known = slo
        await asyncio.sleep(period_s)


def _stored(store: Store) -> SloSettings | None:
    try:
        data = store.get(KEY)
    except Exception:  # Ray's client raises what its transport raises; the next look tries again
        log.warning("the store does not answer, the SLO stays as it is", exc_info=True)
        return None
    if data is None:
        return None
    try:
        document: dict[str, Any] = json.loads(data)
        return SloSettings.model_validate(document["slo"])
    except (ValueError, KeyError, TypeError):
        log.warning("what the store holds under %s is no SLO, it stays as it is", KEY)
        return None
