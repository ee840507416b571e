"""Output lengths of requests that have not ended yet: drawn from what ended lately, by input length.

Completed requests are kept in classes of input length, one to an octave, the latest MOST of each. A request
whose output is not known takes the length of one of its class, or of the nearest class that has any. Which
one follows the golden ratio's sequence, which spreads evenly over them and needs no generator.

At the start only short outputs have completed, so the first minutes look lighter than they are.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

CLASSES, MOST = 21, 256
GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True, eq=False)
class OutputSample:
    """`outputs[c]`: the latest outputs of input class c, oldest first; `drawn`: how many were drawn."""

    outputs: tuple[FloatArray, ...] = (np.zeros(0),) * CLASSES
    drawn: int = 0

    @property
    def known(self) -> bool:
        """Whether any request has completed."""
        return any(len(each) for each in self.outputs)

    def add(self, input_tokens: FloatArray, output_tokens: FloatArray) -> "OutputSample":
        """With completed requests, in their order."""
        if len(input_tokens) == 0:
            return self
        classes = _class_of(input_tokens)
        merged = [
            np.concatenate([known, output_tokens[classes == place]])[-MOST:]
            for place, known in enumerate(self.outputs)
        ]
        return replace(self, outputs=tuple(merged))

    def draw(self, input_tokens: FloatArray) -> tuple[FloatArray, "OutputSample"]:
        """An output length for each input length, f8[N]; `known` must hold."""
        filled = np.array([place for place, each in enumerate(self.outputs) if len(each)])
        classes = _class_of(input_tokens)
        nearest = filled[np.abs(filled[None, :] - np.arange(CLASSES)[:, None]).argmin(axis=1)]
        at = ((self.drawn + np.arange(len(input_tokens))) * GOLDEN) % 1.0
        drawn = np.empty(len(input_tokens))
        for place in np.unique(nearest[classes]):
            known, mine = self.outputs[place], nearest[classes] == place
            drawn[mine] = known[(at[mine] * len(known)).astype(np.int64)]
        return drawn, replace(self, drawn=self.drawn + len(input_tokens))


def _class_of(input_tokens: FloatArray) -> NDArray[np.int64]:
    octave: NDArray[np.int64] = np.log2(np.fmax(input_tokens, 1.0)).astype(np.int64)
    return np.minimum(octave, CLASSES - 1)
