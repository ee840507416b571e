"""Calls with several outputs: `n`, several prompts, or both. They become one request for each output.

    body      a body for each prompt, and where there is a `seed` for each output: `n` is gone from it, and
              copy j has seed + j, as vLLM derives it. Output j of prompt p has index p × n + j
    requests  each is placed, held, shed and counted by itself
    answer    the choices of all, under the id of the first that came; in a stream the events as they come

    usage     prompt tokens: of one output of each prompt; output tokens: of all

The whole call fails with the first output that does: its error is the answer, or the end of the stream.

Beams belong together: their engine compares them. They stay one request, of n times the tokens.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from pydantic_core import from_json, to_json

from serve_apps.faults import BodyTooLarge, InvalidRequest
from serve_apps.gateway.responses import DONE, Answer, HeaderList

MOST_OUTPUTS = 128
"""Of one call: OpenAI's bound on `n`, and an eighth of the places that a gateway has by default."""

MOST_BODY_BYTES = 64 * 2**20
"""Of all bodies that one call becomes: they are held together, and a client has sent only one."""

PROMPTS = ("prompt_embeds", "prompt")
"""Fields that hold one prompt or several, in the order in which vLLM answers them."""

LONG_BYTES = 256 * 2**10
"""Documents from this on are put together beside the event loop, which would stand still."""

RANDOM_SEED = -1
"""vLLM's word for none."""

Fields = Mapping[str, Any]


def several(fields: Fields, *, prompts: bool, most: int) -> tuple[Sequence[Fields], int]:
    """The prompts of a body, each as the fields that give it, and the outputs of each. InvalidRequest.

    `prompts`: there may be several. Of a single one there is nothing to take apart: `[{}]`.
    """
    found = [{name: each} for name in PROMPTS for each in _listed(fields.get(name))] if prompts else []
    n = _count(fields, "n")
    if _count(fields, "best_of") > n:
        text = "Invalid 'best_of': outputs that are not returned are not made; it can't be above 'n'"
        raise InvalidRequest(text, param="best_of")
    if (outputs := max(len(found), 1) * n) > most:
        name = "n" if n > 1 else "prompt"
        text = f"Invalid {name!r}: {outputs} outputs, and a call has at most {most}"
        raise InvalidRequest(text, param=name)
    return (found if len(found) > 1 else [{}]), n


def _count(fields: Fields, name: str) -> int:
    value = fields.get(name)
    if value is None:
        return 1
    # Not by isinstance: in Python true is an integer, in JSON it is none.
    if type(value) is not int or value < 1:
        raise InvalidRequest(f"Invalid {name!r}: it should be an integer of at least 1", param=name)
    return value


def _listed(given: object) -> Sequence[object]:
    """The one prompt of a field, or the several; an empty one is there for want of another field."""
    if not given:
        return ()
    return given if isinstance(given, list) and not isinstance(given[0], int) else [given]


def taken_apart(
    fields: Fields, prompts: Sequence[Fields], copies: int
) -> Iterator[tuple[Fields, Sequence[bytes]]]:
    """For each prompt the fields of its own, and the body for each of its `copies`. BodyTooLarge."""
    seed: Any = fields.get("seed")
    size = 0
    # What is no seed is the engine's to refuse.
    seeded = type(seed) is int and -(2**63) <= seed < 2**63 and seed != RANDOM_SEED
    left_out = {
        "best_of",
        *(("n",) if copies > 1 else ()),
        *(("seed",) if seeded else ()),
        *(PROMPTS if len(prompts) > 1 else ()),
    }
    common = {name: value for name, value in fields.items() if name not in left_out}
    for prompt in prompts:
        own = {**common, **prompt}
        body = to_json(own, inf_nan_mode="constants")
        size += len(body) * copies
        if size > MOST_BODY_BYTES:
            text = f"Its outputs take more than {MOST_BODY_BYTES} bytes of bodies, one for each"
            raise BodyTooLarge(text)
        if seeded:
            # Not each written anew: a long one takes milliseconds.
            begin = body[:-1] + (b"," if own else b"")
            yield own, [begin + b'"seed":%d}' % _seed(seed, copy) for copy in range(copies)]
        else:
            yield own, [body] * copies


def _seed(first: int, copy: int) -> int:
    """That of a copy, within 64 bits."""
    return (first + copy + 2**63) % 2**64 - 2**63


class Shape(NamedTuple):
    """Outputs of a call: how many, how many in a row have one prompt, and the choices that each has."""

    outputs: int
    copies: int
    beams: int

    def number(self, index: int, choices: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """The choices of one output, with their places among those of all."""
        return [{**choice, "index": index * self.beams + choice["index"]} for choice in choices]

    def usage(self, usages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The usage of the call, of those of its outputs in order."""
        total: dict[str, Any] = {}
        for at, usage in enumerate(usages):
            for name, value in usage.items():
                if at % self.copies == 0 or not name.startswith("prompt_"):
                    total[name] = _sum(total.get(name), value)
        return {**total, "total_tokens": total["prompt_tokens"] + total["completion_tokens"]}


def _sum(before: Any, more: Any) -> Any:  # noqa: ANN401 - counts, and objects of counts
    if before is None or more is None:
        return more if before is None else before
    if isinstance(more, Mapping):
        return {name: _sum(before.get(name), more.get(name)) for name in {**before, **more}}
    return before + more


class Form(Protocol):
    """Makes the bytes of an answer of those of its outputs."""

    def add(self, index: int, part: bytes) -> bytes:
        """What of this part of one output can leave at once."""

    async def rest(self) -> bytes:
        """What leaves when all have ended."""


class Events:
    """A stream, with one usage and one end."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._rests = [b""] * shape.outputs
        self._usages: dict[int, Mapping[str, Any]] = {}
        self._usage_event: dict[str, Any] = {}
        self._head: dict[str, Any] = {}

    def add(self, index: int, part: bytes) -> bytes:
        """Its events, numbered."""
        *events, self._rests[index] = (self._rests[index] + part).split(EVENT_END)
        return b"".join(self._numbered(index, event) for event in events)

    async def rest(self) -> bytes:
        """The usage, where it is wanted, and the end."""
        if not self._usages:
            return DONE
        usage = self._shape.usage([self._usages[index] for index in sorted(self._usages)])
        return _event({**self._usage_event, **self._head, "usage": usage}) + DONE

    def _numbered(self, index: int, event: bytes) -> bytes:
        if event + EVENT_END == DONE:
            return b""
        if not event.startswith(DATA):
            return event + EVENT_END
        said = from_json(event.removeprefix(DATA))
        self._head = self._head or {name: said[name] for name in HEAD if name in said}
        if said.get("choices"):
            return _event({**said, **self._head, "choices": self._shape.number(index, said["choices"])})
        if said.get("usage"):
            self._usages[index], self._usage_event = said["usage"], said
            return b""
        return event + EVENT_END


DATA, EVENT_END = b"data: ", b"\n\n"
HEAD = ("id", "created")
"""What all events of a stream share."""


def _event(said: object) -> bytes:
    return DATA + to_json(said) + EVENT_END


class Document:
    """One document."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._parts: list[list[bytes]] = [[] for _ in range(shape.outputs)]

    def add(self, index: int, part: bytes) -> bytes:
        """Nothing yet."""
        self._parts[index].append(part)
        return b""

    async def rest(self) -> bytes:
        """All of it; with probabilities it may have megabytes, and is made beside the event loop."""
        long = sum(len(part) for parts in self._parts for part in parts) >= LONG_BYTES
        return await asyncio.to_thread(self._made) if long else self._made()

    def _made(self) -> bytes:
        documents = [from_json(b"".join(parts)) for parts in self._parts]
        choices = [
            choice
            for index, document in enumerate(documents)
            for choice in self._shape.number(index, document["choices"])
        ]
        usage = self._shape.usage([document["usage"] for document in documents])
        return to_json({**documents[0], "choices": choices, "usage": usage})


class Merged:
    """The answer to a call, made of those to its outputs: `OutputAnswer` takes what comes of one.

    `complete` is called when all have ended, before the last bytes leave.
    """

    def __init__(self, answer: Answer, form: Form, count: int, complete: Callable[[], None]) -> None:
        self._answer, self._form, self._left, self._complete = answer, form, count, complete
        self._explained = False
        self._writing = asyncio.Lock()

    def add_headers(self, headers: HeaderList) -> None:
        """Of the first output that has any: a response has each once."""
        if not self._explained:
            self._explained = True
            self._answer.add_headers(headers)

    async def part(self, index: int, part: bytes, *, last: bool) -> None:
        """A part of one output."""
        async with self._writing:
            made = self._form.add(index, part)
            self._left -= last
            if self._left:
                if made:
                    await self._answer.part(made)
                return
            made += await self._form.rest()
            self._complete()
            await self._answer.part(made, last=True)


class OutputAnswer:
    """One of several outputs on its way into the answer of all; used as an `Answer`."""

    __slots__ = ("_index", "_merged")

    def __init__(self, merged: Merged, index: int) -> None:
        self._merged, self._index = merged, index

    def add_headers(self, headers: HeaderList) -> None:
        """Add to the headers of the response."""
        self._merged.add_headers(headers)

    async def part(self, part: bytes, *, last: bool = False) -> None:
        """Some of this output."""
        await self._merged.part(self._index, part, last=last)

    def push(self, _: bytes) -> bool:
        """False: it has to be merged first."""
        return False
