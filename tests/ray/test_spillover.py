"""One model on two GPU types: what finds no place on the first is served on the second, by real engines."""

import asyncio
from collections.abc import Iterator

import pytest

from headway_cli.deployment import delete, deploy
from headway_cli.live_fleet import fleet_form, fleet_settings
from tests.patience import PATIENCE_S
from tests.ray.clusters import running_replicas, wait_until
from tests.ray.fleet_system import FLEET, Fleet
from tests.ray.live_system import kill_nine, pids

COMMON = {
    "engine": {"profile": "llama-3.1-8b_h100_tp1", "start_up_s": 0.5},
    "slo": {"ttft_ms": 1500, "itl_ms": 100},
    "pools": {"mixed": {"max_replicas": 2}},
    "planner": {"adjustment_interval_s": 2.0, "tick_deadline_s": 60.0},
    "gateway": {"request_timeout_s": 2 * PATIENCE_S},
    "fleet": {"gpus": {"L20": 1, "H100": 1}},
}
# One request at a time, for some seconds: the next cannot begin in time.
CHAT = {"engine": {"gpu_type": "L20", "max_batch_size": 1}, "spillover": "more"}
MORE = {"engine": {"gpu_type": "H100"}}
TOKENS, BESIDE = 600, 4
KEEPER = f"{FLEET}#ControlPlane#"


@pytest.fixture(scope="module")
def fleet(ray_cluster: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    made = Fleet(tmp_path_factory.mktemp("fleet") / "fleet.yaml", COMMON)
    made.write(chat=CHAT, more=MORE)
    settings = fleet_settings(str(made.path), FLEET)
    deploy(settings.common, print, fleet_form(settings), FLEET)
    yield made
    delete(FLEET)


def ended(fleet: Fleet, name: str, outcome: str) -> float:
    return fleet.deployment(name).counted("headway_requests_total", f'outcome="{outcome}"')


def test_what_finds_no_place_is_served_on_the_other_type(fleet: Fleet) -> None:
    assert fleet.models() == ["llama-3.1-8b"]
    wait_until(lambda: all(fleet.deployment(name).newest() >= 0 for name in ("chat", "more")))

    async def crowd() -> list[int]:
        first = asyncio.create_task(fleet.asked("llama-3.1-8b", TOKENS))
        await asyncio.to_thread(wait_until, lambda: fleet.gateway.counted("headway_requests_in_flight") == 1)
        return await asyncio.gather(first, *(fleet.asked("llama-3.1-8b", TOKENS) for _ in range(BESIDE)))

    assert asyncio.run(crowd()) == [TOKENS] * (1 + BESIDE)

    spilled = ended(fleet, "chat", "spilled")
    assert spilled >= 1
    assert ended(fleet, "chat", "ok") == 1 + BESIDE - spilled
    assert ended(fleet, "more", "ok") == spilled
    # The first is sized for all, and says what it lacks; the second for what came over to it.
    for name, requests in (("chat", 1 + BESIDE), ("more", spilled)):
        wait_until(lambda: _planned(fleet, name) == requests)  # noqa: B023


def test_one_that_others_spill_over_to_changes_and_outlives_the_control_plane(fleet: Fleet) -> None:
    keeper = pids(KEEPER)
    fleet.change(chat=CHAT, more={**MORE, "slo": {"ttft_ms": 3000}})
    wait_until(lambda: fleet.deployment("more").status()["slo"]["ttft_ms"] == 3000)
    assert pids(KEEPER) == keeper, "its replica was refused, and replaced"

    before = {name: fleet.deployment(name).newest() for name in ("chat", "more")}
    kill_nine(KEEPER)
    wait_until(lambda: running_replicas(FLEET, "ControlPlane") == 1)
    for name, newest in before.items():
        wait_until(lambda: fleet.deployment(name).newest() > newest + 1)  # noqa: B023


def _planned(fleet: Fleet, name: str) -> float:
    return sum(record["measured"]["requests"] or 0 for record in fleet.deployment(name).decisions())
