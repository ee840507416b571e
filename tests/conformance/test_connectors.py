"""What every connector must do, whatever carries its targets out; one more passes by an entry in WORLDS."""

import asyncio
import json

import pytest
from connector_worlds import WORLDS

from actors.connectors.protocol import Action, PoolCounts, Refused, Unreachable
from headway.planning import Role
from tests.patience import PATIENCE_S

REASONS = {"summary": "more load", "forecast": None}

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=sorted(WORLDS))
async def world(request, anyio_backend):
    async with WORLDS[request.param]() as made:
        yield made


def pools(prefill: int, decode: int) -> dict[Role, int]:
    return {Role.PREFILL: prefill, Role.DECODE: decode}


async def stands_at(connector, wanted: dict[Role, int]) -> None:
    """Until every pool has exactly its replicas, none of them coming or going."""
    settled = {role: PoolCounts(desired=n, starting=0, ready=n, draining=0) for role, n in wanted.items()}
    state = None
    try:
        async with asyncio.timeout(PATIENCE_S):
            while (state := await connector.state()) != settled:
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"{state} did not become {settled}")


async def scaled(world, wanted: dict[Role, int]) -> Action:
    action = await world.connector.set_targets(wanted, REASONS)
    await world.carry_out()
    await stands_at(world.connector, wanted)
    return action


async def test_it_is_ready_and_shows_the_configured_pools(world):
    assert (await world.connector.ready()).ok
    state = await world.connector.state()
    assert set(state) == {Role.PREFILL, Role.DECODE}
    assert {role: (counts.desired, counts.ready) for role, counts in state.items()} == {
        Role.PREFILL: (1, 1),
        Role.DECODE: (1, 1),
    }


async def test_replicas_follow_up_and_down(world):
    await scaled(world, pools(1, 3))
    await scaled(world, pools(2, 1))


async def test_counts_are_whole_at_every_moment(world):
    for wanted in (pools(1, 3), pools(2, 1)):
        await world.connector.set_targets(wanted, REASONS)
        for role, counts in (await world.connector.state()).items():
            assert counts.desired == wanted[role]
            assert min(counts.starting, counts.ready, counts.draining) >= 0
        await world.carry_out()


async def test_the_same_targets_may_be_set_every_tick(world):
    await scaled(world, pools(2, 2))
    for _ in range(5):
        assert (await world.connector.set_targets(pools(2, 2), REASONS)).status == "unchanged"
    await stands_at(world.connector, pools(2, 2))


async def test_a_role_that_is_left_out_keeps_its_target(world):
    await scaled(world, pools(2, 2))
    await world.connector.set_targets({Role.DECODE: 3}, REASONS)
    await world.carry_out()
    await stands_at(world.connector, pools(2, 3))


async def test_a_role_without_a_pool_is_refused_and_changes_nothing(world):
    with pytest.raises(Refused, match="mixed"):
        await world.connector.set_targets({Role.MIXED: 2, Role.DECODE: 4}, REASONS)
    state = await world.connector.state()
    assert {role: counts.desired for role, counts in state.items()} == pools(1, 1)


async def test_what_became_of_it_is_json(world):
    action = await world.connector.set_targets(pools(1, 2), REASONS)
    assert json.loads(json.dumps(dict(action.detail), allow_nan=False)) == dict(action.detail)


async def test_no_answer_is_unreachable_and_not_ready(world):
    await world.go_away()
    with pytest.raises(Unreachable, match=r"\w"):
        await world.connector.set_targets(pools(1, 2), REASONS)
    with pytest.raises(Unreachable, match=r"\w"):
        await world.connector.state()
    ready = await world.connector.ready()
    assert not ready.ok
    assert ready.reason
