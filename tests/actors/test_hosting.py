"""One actor with a part for each application. The double is the store's list of applications."""

import asyncio
import inspect
from collections.abc import Mapping
from typing import Any

import pytest

from actors import hosting
from actors.applications import Served
from actors.names import ActorGone
from tests.stores import MemoryStore


class Clerk:
    """A part that says whose it is."""

    def __init__(self, settings: str, application: str) -> None:
        if settings == "broken":
            raise ValueError("such settings")
        self.settings, self.application, self.closed = settings, application, False

    async def told(self, greeting: str, *, loudly: bool = False) -> str:
        """A greeting."""
        said = f"{greeting}, {self.application} with {self.settings}"
        return said.upper() if loudly else said

    def close(self) -> None:
        self.closed = True


class Counter:
    """A part without coroutines."""

    def __init__(self, application: str) -> None:
        self._application = application

    def count(self, more: int) -> str:
        return self._application * more


def made(settings: str, application: str, _: object) -> Clerk:
    return Clerk(settings, application)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> dict[str, Served]:
    known: dict[str, Served] = {}
    monkeypatch.setattr(hosting, "applications", lambda _: known)
    monkeypatch.setattr(
        hosting, "first", lambda _: next((name for name, each in known.items() if not each.prefix), "")
    )
    monkeypatch.setattr(hosting, "store_of", lambda _: MemoryStore())
    return known


def named(settings: str, prefix: str) -> Served:
    return Served(settings=settings, checksum="", token="", prefix=prefix, model=settings)


def clerks(known: Mapping[str, str]) -> Any:
    """The actor's object, as Ray makes it."""
    kind = hosting.hosting(Clerk, made)
    host = kind.__new__(kind)
    asyncio.run(host.__init__(known))
    return host


def told(host: Any, *args: object, **more: object) -> Any:
    return asyncio.run(host.told(*args, **more))


def test_a_call_is_for_the_first_application_or_for_the_one_that_it_names(served: dict[str, Served]):
    host = clerks({"a": "old"})
    assert told(host, "hello") == told(host, "hello", application="a") == "hello, a with old"
    asyncio.run(host.add("b", "new"))
    assert told(host, "hello", application="b", loudly=True) == "HELLO, B WITH NEW"
    assert told(host, "hello") == "hello, a with old"
    with pytest.raises(ActorGone, match="Clerk has nothing of the application 'c'"):
        told(host, "hello", application="c")


def test_what_is_there_stays_until_it_is_removed(served: dict[str, Served]):
    host = clerks({"a": "old"})
    before = host.parts.of("a")
    asyncio.run(host.add("a", "new"))
    assert host.parts.of("a") is before
    asyncio.run(host.remove("a"))
    assert before.closed
    asyncio.run(host.remove("a"))
    asyncio.run(host.add("a", "new"))
    assert told(host, "hello") == "hello, a with new"


def test_a_restart_makes_what_the_store_has_and_one_that_fails_fails_alone(served: dict[str, Served]):
    served |= {"b": named("other", "applications/b/"), "a": named("mine", ""), "c": named("broken", "c/")}
    host = clerks({"gone": "long ago"})
    assert told(host, "hello") == "hello, a with mine"
    assert told(host, "hello", application="b") == "hello, b with other"
    for name in ("c", "gone"):
        with pytest.raises(ActorGone):
            told(host, "hello", application=name)


def test_what_could_not_be_made_is_tried_again_after_a_while(
    served: dict[str, Served], monkeypatch: pytest.MonkeyPatch
):
    now_s = [100.0]
    monkeypatch.setattr(hosting.time, "monotonic", lambda: now_s[0])
    served |= {"a": named("mine", ""), "b": named("broken", "b/")}
    host = clerks({})
    served["b"] = named("mended", "b/")
    for later_s, there in ((0.0, False), (hosting.AGAIN_S - 1.0, False), (1.0, True)):
        now_s[0] += later_s
        if there:
            assert told(host, "hello", application="b") == "hello, b with mended"
        else:
            with pytest.raises(ActorGone):
                told(host, "hello", application="b")


def test_an_only_one_that_fails_says_why(served: dict[str, Served]):
    with pytest.raises(ValueError, match="such settings"):
        clerks({"a": "broken"})


def test_parts_without_coroutines_share_threads(served: dict[str, Served]):
    kind = hosting.hosting(Counter, lambda _, application, __: Counter(application))
    assert (kind.__name__, inspect.iscoroutinefunction(kind.count)) == ("Counter", False)
    host = kind({"x": ""})
    assert host.count(3) == "xxx"
    host.remove("x")
    with pytest.raises(ActorGone):
        host.count(1)
