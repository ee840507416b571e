"""One model on two real vLLM engines, of two GPU types: what finds no place on one goes to the other."""

import asyncio
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.config.models import with_key
from headway_cli.deployment import delete, deploy
from headway_cli.live_fleet import fleet_form, fleet_settings
from tests.patience import PATIENCE_S
from tests.ray.clusters import wait_until
from tests.ray.fleet_system import FLEET, Fleet
from tests.vllm.served import STARTED_WITHIN_S, TINY

MODEL, LONG, BESIDE = "tiny", 1000, 3
SETTINGS: dict[str, Any] = {
    **{key: value for key, value in TINY.items() if key != "model"},
    "model": MODEL,
    "engine.ready_within_s": STARTED_WITHIN_S,
    "slo.ttft_ms": 3000.0,
    "slo.itl_ms": 1000.0,
    "fleet.gpus": {"L20": 1, "H100": 1},
    "pools.mixed": {"max_replicas": 1, "resources": {"decode": 1}},
    "planner.adjustment_interval_s": 2.0,
    "planner.tick_deadline_s": 60.0,
    "gateway.request_timeout_s": 2 * PATIENCE_S,
}


@pytest.fixture(scope="module")
def fleet(ray_cluster: object, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    common: dict[str, Any] = {}
    for key, value in {**SETTINGS, "engine.vllm.model": str(model)}.items():
        common = with_key(common, key, value)
    made = Fleet(tmp_path_factory.mktemp("fleet") / "fleet.yaml", common)
    made.write(
        chat={"engine": {"gpu_type": "L20", "max_batch_size": 1}, "spillover": "more"},
        more={"engine": {"gpu_type": "H100"}},
    )
    # The checks import vLLM.
    with warnings.catch_warnings(action="ignore"):
        settings = fleet_settings(str(made.path), FLEET)
    deploy(settings.common, print, fleet_form(settings), FLEET)
    yield made
    delete(FLEET)


def test_what_finds_no_place_is_served_by_the_second_engine(fleet: Fleet) -> None:
    async def crowd() -> list[int]:
        # It alone fills the first engine, for longer than the others could wait.
        first = asyncio.create_task(fleet.asked(MODEL, LONG, ignore_eos=True))
        await asyncio.to_thread(wait_until, lambda: fleet.gateway.counted("headway_requests_in_flight") == 1)
        others = (fleet.asked(MODEL, LONG, ignore_eos=True) for _ in range(BESIDE))
        return await asyncio.gather(first, *others)

    assert asyncio.run(crowd()) == [LONG] * (1 + BESIDE)

    chat, more = fleet.deployment("chat"), fleet.deployment("more")
    spilled = chat.counted("headway_requests_total", 'outcome="spilled"')
    assert 1 <= spilled == more.counted("headway_requests_total", 'outcome="ok"')
    assert chat.counted("headway_requests_total", 'outcome="ok"') == 1 + BESIDE - spilled
    assert fleet.has_all_decisions("chat")
    assert fleet.has_all_decisions("more")
