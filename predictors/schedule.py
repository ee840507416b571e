"""When a model is fitted and when it is merely updated, and what happens when it fails.

Observations are numbered from 1. A model is fitted

- as soon as its window holds `minimum_points` measured values,
- at each multiple of `refit_every` (unless that is 0),
- at once when an update fails or leaves the model stale, and again at each observation until a fit succeeds,

and updated otherwise. A fit counts only if the model then predicts. Which fits happen does not depend on when
forecasts are asked for, so a lazy model may skip everything before the latest multiple of `refit_every`.

A prediction is refused when it is not finite, or when it runs away as an exploding autoregression does:
above 10 k times the largest value observed, k steps ahead.
"""

import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

import numpy as np

from predictors.checks import ModelError
from predictors.model import FloatArray, Model, Prediction

RUNAWAY = 10.0
FAR_TAIL = 0.999


class Journal:
    """Troubles under one predictor: model failures, and warnings of the libraries below."""

    def __init__(self) -> None:
        self.failures = 0
        self.last_failure: str | None = None
        self.library_warnings = 0
        self.last_warning: str | None = None

    def note(self, failure: ModelError) -> None:
        """Count a failure and keep its reason."""
        self.failures += 1
        self.last_failure = str(failure)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Keep warnings raised inside from reaching the caller; count them and keep the last one's text."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                yield
            finally:
                self.library_warnings += len(caught)
                if caught:
                    text = str(caught[-1].message).partition("\n")[0]
                    self.last_warning = f"{caught[-1].category.__name__}: {text}"


class Scheduled:
    """A model kept up to date with a bounded history; failures go to its journal."""

    def __init__(self, model: Model, *, minimum_points: int, max_points: int) -> None:
        self._model = model
        self._minimum_points = minimum_points
        self._max_points = max_points
        self._values: deque[float] = deque(maxlen=max_points + model.traits.refit_every)
        self._count = 0
        self._done = 0
        self._complained_at = 0
        self._largest = 0.0
        self.journal = Journal()
        self.fitted = False
        self.problem: str | None = None

    @property
    def measured(self) -> int:
        """Measured values in the present window."""
        return int(np.isfinite(self._window(self._count)).sum())

    def append(self, value: float) -> None:
        """Take in the next observation, NaN for a gap; the model follows at `catch_up`."""
        self._values.append(value)
        self._count += 1
        self._largest = max(self._largest, value)  # a NaN never compares larger

    def catch_up(self) -> None:
        """Bring the model up to the last observation.

        Afterwards `fitted` says whether it can answer; if not, `problem` is the reason, or None while
        warming up.
        """
        every = self._model.traits.refit_every
        latest_fit = self._count // every * every if every else 0
        # Whatever lies before the latest scheduled fit is forgotten by it, so a lazy model skips that work.
        for index in range(max(self._done + 1, latest_fit), self._count + 1):
            self._advance(index, scheduled=every > 0 and index % every == 0)
        self._done = self._count

    def predict(self, horizon: int) -> Prediction:
        """The fitted model's answer with means >= 0. A failure is counted once per observation.

        Raises ModelError: the library failed, or the answer is not finite or runs away.
        """
        try:
            with self.journal.listening():
                return self._checked(horizon)
        except ModelError as error:
            if self._complained_at != self._count:
                self._complained_at = self._count
                self.journal.note(error)
            raise

    def _advance(self, index: int, *, scheduled: bool) -> None:
        if self.fitted and not scheduled:
            value = self._values[index - self._count - 1]
            self.fitted = self._attempt(lambda: self._model.update(value))
        if scheduled or not self.fitted or self._model.stale:
            self.fitted = self._fit(self._window(index))

    def _fit(self, window: FloatArray) -> bool:
        if np.isfinite(window).sum() < self._minimum_points:
            self.problem = None
            return False
        return self._attempt(lambda: self._model.fit(window)) and self._attempt(lambda: self._checked(1))

    def _attempt(self, action: Callable[[], object]) -> bool:
        try:
            with self.journal.listening():
                action()
        except ModelError as error:
            self.journal.note(error)
            self.problem = str(error)
            return False
        return True

    def _checked(self, horizon: int) -> Prediction:
        prediction = self._model.predict(horizon)
        tail = None if prediction.distribution is None else prediction.distribution.quantile(FAR_TAIL)
        if not np.isfinite(prediction.mean).all() or (tail is not None and not np.isfinite(tail).all()):
            raise ModelError("the forecast is not finite")
        if (prediction.mean > RUNAWAY * self._largest * np.arange(1, horizon + 1)).any():
            raise ModelError(f"the forecast runs away (above {RUNAWAY:g} times the largest value, per step)")
        return Prediction(mean=np.maximum(prediction.mean, 0.0), distribution=prediction.distribution)

    def _window(self, index: int) -> FloatArray:
        end = len(self._values) - (self._count - index)
        start = max(0, end - self._max_points)
        return np.fromiter(islice(self._values, start, end), dtype=np.float64, count=end - start)
