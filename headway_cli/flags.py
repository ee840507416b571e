"""Flags in short, and options as one value: a dataclass of annotated fields becomes a command's parameters.

    @dataclass
    class Common:
        seed: Annotated[int | None, option("N", "The seed.")] = None

    @app.command()
    @spread(Common)
    def verb(common: Common, trace: Annotated[str, argument("TRACE", "A trace.")]) -> None: ...

The command takes `--seed` and `trace`; the function sees one `Common`.
"""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import wraps
from typing import Any, TypeVar, get_type_hints

import typer

T = TypeVar("T")


def option(metavar: str, text: str, *names: str, **limits: Any) -> Any:  # noqa: ANN401 - as typer has it
    """A flag with a value; without `names` it is called like the parameter. `limits` are `min` and `max`."""
    return typer.Option(*names, metavar=metavar, help=text, **limits)


def switch(name: str, text: str) -> Any:  # noqa: ANN401 - as above
    """A flag without a value."""
    return typer.Option(name, help=text)


def argument(metavar: str, text: str) -> Any:  # noqa: ANN401 - as above
    """A value without a flag."""
    return typer.Argument(metavar=metavar, help=text)


def spread(kind: type[T]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the parameter of type `kind` by one parameter per field of the dataclass."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        collected = next(name for name, hint in hints.items() if hint is kind)
        options = _parameters(kind)
        own = [
            parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            for name, parameter in inspect.signature(function).parameters.items()
            if name != collected
        ]

        @wraps(function)
        def command(**values: Any) -> None:  # noqa: ANN401 - whatever the fields hold
            chosen = kind(**{option.name: values.pop(option.name) for option in options})
            function(**{collected: chosen}, **values)

        every = [*own, *options]
        command.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined] # inspect reads it
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
        return command

    return decorate


def _parameters(kind: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            item.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if item.default is MISSING else item.default,
            annotation=hints[item.name],
        )
        for item in fields(kind)
    ]
