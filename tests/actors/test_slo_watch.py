"""Gateway and Router follow the planner's SLO."""

import asyncio
import json

from actors.planning.settings import KEY
from actors.slo_watch import follow_slo
from actors.store import MemoryStore


class Failing(MemoryStore):
    """A store that fails once: its transport cannot be broken otherwise here."""

    failed = False

    def get(self, key: str) -> bytes | None:
        if not self.failed:
            self.failed = True
            raise ConnectionError("gone")
        return super().get(key)


def stored(ttft_ms: float, itl_ms: float) -> bytes:
    return json.dumps({"slo": {"ttft_ms": ttft_ms, "itl_ms": itl_ms, "attainment": 0.99}}).encode()


def test_targets_are_handed_over_once_a_change() -> None:
    async def story() -> list[tuple[float, float]]:
        taken: list[tuple[float, float]] = []
        store = Failing()
        store.put(KEY, b"{}")
        watch = asyncio.create_task(follow_slo(store, lambda *slo: taken.append(slo), period_s=0.001))
        await asyncio.sleep(0.02)
        for ttft_ms in (200, 400):
            store.put(KEY, stored(ttft_ms, 10))
            await asyncio.sleep(0.05)
        while len(taken) < 2:
            await asyncio.sleep(0.001)
        watch.cancel()
        return taken

    assert [(round(ttft_s, 9), round(itl_s, 9)) for ttft_s, itl_s in asyncio.run(story())] == [
        (0.2, 0.01),
        (0.4, 0.01),
    ]


def test_a_store_without_targets_changes_nothing() -> None:
    async def story() -> list[object]:
        taken: list[object] = []
        watch = asyncio.create_task(follow_slo(MemoryStore(), lambda *slo: taken.append(slo), period_s=0.001))
        await asyncio.sleep(0.02)
        watch.cancel()
        return taken

    assert asyncio.run(story()) == []
