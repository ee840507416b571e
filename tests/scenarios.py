"""Tests that are coroutines, on a loop or in a world that their module makes."""

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

Scenario = Callable[..., Coroutine[Any, Any, None]]


def scenarios(play: Callable[..., None]) -> Callable[..., Callable[[Scenario], Callable[..., None]]]:
    """Decorators of tests: `play(scenario, ...)` runs one, with the decorator's own arguments.

    What `play` hands to the scenario are the test's positional-only parameters; pytest gives it the others.
    """

    def decorator(*arguments: Any, **options: Any) -> Callable[[Scenario], Callable[..., None]]:
        def decorate(scenario: Scenario) -> Callable[..., None]:
            @functools.wraps(scenario)
            def test(**given: Any) -> None:
                play(functools.partial(scenario, **given), *arguments, **options)

            signature = inspect.signature(scenario)
            asked = [each for each in signature.parameters.values() if each.kind is not each.POSITIONAL_ONLY]
            test.__signature__ = signature.replace(parameters=asked)  # type: ignore[attr-defined]
            return test

        return decorate

    return decorator
