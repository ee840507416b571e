"""Bodies that come slowly, in parts, or all at once."""

import asyncio

import pytest

from serve_apps.gateway.backend import BodyTooSlow, ClientGone, Shed
from serve_apps.gateway.bodies import Bodies
from tests.engines.virtual_loop import run

MIB = 2**20


def bodies(most_bytes: int = MIB, within_s: float = 60.0) -> Bodies:
    return Bodies(most_bytes=most_bytes, within_s=within_s, retry_after_s=1.0)


def coming(*parts: bytes | float):
    """A channel on which these parts come; numbers are seconds until the next."""
    left = list(parts)

    async def receive():
        while isinstance(left[0], float):
            await asyncio.sleep(left.pop(0))
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    return receive


async def read(where: Bodies, receive) -> bytes:
    async with where.read([], receive) as body:
        return body


def test_what_is_held_is_counted_and_let_go():
    async def scenario():
        all_of_them = bodies()
        async with all_of_them.read([], coming(b"ab", b"c")) as body:
            assert (body, all_of_them.held) == (b"abc", 3)
        assert all_of_them.held == 0

    run(scenario())


def test_more_than_all_may_hold_is_turned_away_and_takes_no_room():
    async def scenario():
        all_of_them = bodies()
        async with all_of_them.read([], coming(b"x" * (MIB - 1))):
            with pytest.raises(Shed):
                await read(all_of_them, coming(b"a", b"b"))
            assert await read(all_of_them, coming(b"a")) == b"a"
        assert all_of_them.held == 0

    run(scenario())


def test_a_body_has_its_time_and_those_beside_it_have_theirs():
    async def scenario():
        all_of_them = bodies(within_s=10.0)
        slow = asyncio.create_task(read(all_of_them, coming(b"a", 20.0, b"b")))
        assert await read(all_of_them, coming(9.0, b"b")) == b"b"
        with pytest.raises(BodyTooSlow):
            await slow
        assert all_of_them.held == 0

    run(scenario())


def test_who_leaves_takes_its_part_along():
    async def scenario():
        all_of_them = bodies()

        async def receive():
            return {"type": "http.disconnect"}

        with pytest.raises(ClientGone):
            await read(all_of_them, receive)
        assert all_of_them.held == 0

    run(scenario())
