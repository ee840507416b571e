"""What fails in one event and must not take others with it: counted by kind, logged the first time."""

import logging
from collections import Counter
from collections.abc import Callable
from typing import ParamSpec

logger = logging.getLogger(__name__)

P = ParamSpec("P")


class Faults:
    """The failures of one desk. `counts` has a kind only once it has failed."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._logged: set[tuple[str, type[Exception]]] = set()

    def attempt(
        self, kind: str, work: Callable[P, None], *args: P.args, **kwargs: P.kwargs
    ) -> Exception | None:
        """Do it; what was raised, None if it was done."""
        try:
            work(*args, **kwargs)
        except Exception as error:
            self.counts[kind] += 1
            if (kind, type(error)) not in self._logged:
                self._logged.add((kind, type(error)))
                logger.exception("%s: not all could be done; the next of its kind are only counted", kind)
            return error
        return None
