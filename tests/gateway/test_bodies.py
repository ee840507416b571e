"""Bodies that come slowly, in parts, or all at once."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_apps.faults import BodyTooLarge, BodyTooSlow, ClientGone, Shed
from serve_apps.gateway.reading import MOST_COMMAS, MOST_CONTAINERS, Bodies, ValueCount
from tests.engines.virtual_loop import on_virtual_time, run

MIB = 2**20
LARGE = bytes(MIB - 1)


def bodies(most_bytes: int = MIB, within_s: float = 60.0) -> Bodies:
    return Bodies(most_bytes=most_bytes, within_s=within_s)


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


@on_virtual_time
async def test_what_is_held_is_counted_and_let_go():
    all_of_them = bodies()
    async with all_of_them.read([], coming(b"ab", b"c")) as body:
        assert (body, all_of_them.held) == (b"abc", 3)
    assert all_of_them.held == 0


@on_virtual_time
async def test_what_comes_slower_than_others_makes_room_for_them():
    all_of_them = bodies()
    held_open = asyncio.create_task(read(all_of_them, coming(LARGE, 50.0, b"a")))
    await asyncio.sleep(1.0)
    async with all_of_them.read([], coming(LARGE)) as body:
        assert all_of_them.held == len(body) == len(LARGE)
    with pytest.raises(BodyTooSlow, match="slower than others"):
        await held_open
    assert all_of_them.held == 0


@on_virtual_time
async def test_one_that_made_room_is_refused_even_if_its_last_part_comes_in_the_same_turn():
    all_of_them, both = bodies(), asyncio.Event()

    def then(before_s, *parts):
        left = list(parts)

        async def receive():
            if len(left) == 1:
                await asyncio.sleep(before_s)
                await both.wait()
            return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

        return receive

    slow = asyncio.create_task(read(all_of_them, then(1.5, LARGE, b"a")))
    await asyncio.sleep(1.0)
    fast = asyncio.create_task(read(all_of_them, then(0.0, LARGE)))
    await asyncio.sleep(1.0)
    both.set()
    assert await fast == LARGE
    with pytest.raises(BodyTooSlow):
        await slow
    assert all_of_them.held == 0


def test_one_whose_time_is_over_may_make_room_in_the_same_turn():
    async def scenario():
        for earlier_s in (0.0, 1.0, 2.0):
            all_of_them = bodies(within_s=10.0)
            tasks = [
                asyncio.create_task(read(all_of_them, coming(LARGE, 50.0, b"a"))),
                asyncio.create_task(late(all_of_them, earlier_s, coming(10.0 - earlier_s, LARGE))),
            ]
            more = [late(all_of_them, 5.0, coming(5.0, LARGE)) for _ in range(3)]
            done = await asyncio.gather(*tasks, *more, return_exceptions=True)
            assert isinstance(done[0], BodyTooSlow)
            assert all(isinstance(one, bytes | Shed | BodyTooSlow) for one in done)
            assert all_of_them.held == 0

    async def late(where, after_s, receive):
        await asyncio.sleep(after_s)
        return await read(where, receive)

    run(scenario())


@on_virtual_time
async def test_where_all_others_are_as_fast_or_complete_the_next_one_is_turned_away():
    all_of_them = bodies()
    async with all_of_them.read([], coming(LARGE)):
        with pytest.raises(Shed):
            await read(all_of_them, coming(LARGE))
        assert await read(all_of_them, coming(b"short")) == b"short"
    assert all_of_them.held == 0


@on_virtual_time
async def test_bodies_of_too_many_values_are_refused_before_they_are_complete():
    for value in (b"{},", b"[],", b'{ "role" : "user" },', b"[ [ [ [ "):
        body = b'{"messages":[' + value * (2 * MOST_CONTAINERS)
        with pytest.raises(BodyTooLarge, match="arrays and objects"):
            await read(bodies(2**24), coming(*sliced(body), b"not read"))
    assert len(await read(bodies(2**24), coming(*sliced(b"[" + b"12345," * 10**6)))) > 6e6
    with pytest.raises(BodyTooLarge):
        await read(bodies(2**24), coming(*sliced(b"[" + b"1," * (1 + MOST_COMMAS))))


def sliced(body: bytes, size: int = 10_007) -> list[bytes]:
    return [body[at : at + size] for at in range(0, len(body), size)]


TEXTS = st.text(alphabet='ab,[{"\\\n', max_size=12)
VALUES = st.recursive(
    st.none() | TEXTS | st.integers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


@given(VALUES, st.integers(1, 9))
def test_values_are_counted_wherever_the_parts_end(value, size):
    text = json.dumps(value).encode()
    count = ValueCount()
    for part in sliced(text, size):
        count.add(part)
    assert (count.commas, count.containers) == counted(value)


def counted(value: object) -> tuple[int, int]:
    """Commas, and arrays and objects."""
    if not isinstance(value, list | dict):
        return 0, 0
    inner = [counted(each) for each in (value.values() if isinstance(value, dict) else value)]
    commas, containers = (sum(column) for column in zip(*inner, strict=True)) if inner else (0, 0)
    return commas + max(0, len(value) - 1), containers + 1


@on_virtual_time
async def test_a_body_has_its_time_and_those_beside_it_have_theirs():
    all_of_them = bodies(within_s=10.0)
    slow = asyncio.create_task(read(all_of_them, coming(b"a", 20.0, b"b")))
    assert await read(all_of_them, coming(9.0, b"b")) == b"b"
    with pytest.raises(BodyTooSlow):
        await slow
    assert all_of_them.held == 0


@on_virtual_time
async def test_who_leaves_takes_its_part_along():
    all_of_them = bodies()

    async def receive():
        return {"type": "http.disconnect"}

    with pytest.raises(ClientGone):
        await read(all_of_them, receive)
    assert all_of_them.held == 0
