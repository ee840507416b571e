"""What a sum of ramps cannot say: a few boosted trees over the log residuals of the curve.

    t(x) = curve(x) · exp(Σ_k tree_k(x))

A latency that two inputs bring about together (a long prompt beside a full batch) is no sum of functions of
one input each. Trees are grown as extremely randomised trees (Geurts, Ernst & Wehenkel 2006): at each node
`DRAWS` thresholds are drawn for each input, at quantiles of the node's rows, and of all the one that explains
most is taken. Each tree learns `RATE` of what those before it left (Friedman 2001). The draws are points of
the golden-ratio sequence, so the same rows give the same trees.

A tree is complete, of depth `DEPTH`: node i has the children 2 i + 1 and 2 i + 2, and a node that is not
split sends all rows to the left. So a leaf is found by a fixed number of comparisons. Beyond the rows that
were seen a tree says what it says at their edge. A residual counts as at most `LARGEST_LOG`; a leaf's mean is
taken as if `LEAF_PRIOR` more rows in it had no residual.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from predictors.latency.features import BoolArray, FloatArray

DEPTH = 7
NODES = 2**DEPTH - 1
DRAWS = 2
RATE = 0.3
LEAF_ROWS = 3
"""Rows on either side of a split, at least."""

LEAF_PRIOR = 0.3
LARGEST_LOG = 1.0
GOLDEN = 0.6180339887498949
MIDDLE = 0.7
"""Thresholds are drawn within this share of a node's rows, around their median."""

IntArray = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forest:
    """Inner nodes: source int[K, NODES], the input, and threshold f8[K, NODES]; leaf f8[K, NODES + 1]."""

    source: IntArray
    threshold: FloatArray
    leaf: FloatArray

    def at(self, inputs: FloatArray) -> FloatArray:
        """The log of the correction at `inputs` (8, N), shape (N,)."""
        rows = inputs.shape[1]
        values, source, threshold = np.ravel(inputs), np.ravel(self.source * rows), np.ravel(self.threshold)
        column, tree = np.arange(rows), NODES * np.arange(len(self.leaf))[:, None]
        node = np.zeros((len(self.leaf), rows), dtype=np.intp)
        for _ in range(DEPTH):
            at = node + tree
            above = values.take(source.take(at) + column) > threshold.take(at)
            node = 2 * node + 1 + above
        tree = (NODES + 1) * np.arange(len(self.leaf))[:, None] - NODES
        return np.asarray(np.ravel(self.leaf).take(node + tree).sum(axis=0))

    def scaled(self, share: float) -> "Forest":
        """The forest with a share of its correction."""
        return Forest(source=self.source, threshold=self.threshold, leaf=share * self.leaf)


def fit_forest(inputs: FloatArray, residual: FloatArray, weights: FloatArray, trees: int = 8) -> Forest:
    """Trees through the log residuals f8[N] of rows at `inputs` (8, N), each with a weight > 0."""
    left = np.clip(residual, -LARGEST_LOG, LARGEST_LOG)
    order = np.argsort(inputs, axis=1, kind="stable")
    grown = []
    for number in range(trees):
        grower = _Tree(inputs, order, left, weights, number)
        leaf, node = grower.grown()
        grown.append((grower.source, grower.threshold, leaf))
        left = left - leaf[node]
    source, threshold, leaves = (np.stack(part) for part in zip(*grown, strict=True))
    return Forest(source=source, threshold=threshold, leaf=leaves)


class _Tree:
    """One tree while it grows, level by level: all nodes of a level at once."""

    def __init__(
        self, inputs: FloatArray, order: IntArray, wanted: FloatArray, weights: FloatArray, number: int
    ) -> None:
        self._inputs, self._order, self._weights = inputs, order, weights
        self._weighted = weights * wanted
        self._number = number
        self.source, self.threshold = np.zeros(NODES, dtype=np.intp), np.full(NODES, np.inf)

    def grown(self) -> tuple[FloatArray, IntArray]:
        """The leaves' values, and the leaf of each row."""
        columns = np.arange(self._inputs.shape[1])
        node = np.zeros(len(columns), dtype=np.intp)
        for level in range(DEPTH):
            self._split(node - (2**level - 1), level)
            node = 2 * node + 1 + (self._inputs[self.source[node], columns] > self.threshold[node])
        leaf = node - NODES
        weight = np.bincount(leaf, self._weights, NODES + 1) + LEAF_PRIOR
        return RATE * np.bincount(leaf, self._weighted, NODES + 1) / weight, leaf

    def _split(self, place: IntArray, level: int) -> None:
        """Set the nodes of a level; `place` is each row's node among them."""
        count = 2**level
        nodes, best = slice(count - 1, 2 * count - 1), np.zeros(count)
        for column, values in enumerate(self._inputs):
            if values[self._order[column, 0]] == values[self._order[column, -1]]:
                continue
            for bound in self._bounds(column, place, count):
                gain = self._gain(2 * place + (values > bound[place]), count)
                better = gain > best
                best[better] = gain[better]
                self.source[nodes][better] = column
                self.threshold[nodes][better] = bound[better]

    def _bounds(self, column: int, place: IntArray, count: int) -> list[FloatArray]:
        """Thresholds, f8[count], for each draw."""
        order = self._order[column]
        by_node = order[np.argsort(place[order].astype(np.int16), kind="stable")]
        size = np.bincount(place, minlength=count)
        start, seed = np.cumsum(size) - size, (self._number * DEPTH + count) * len(self._inputs) + column
        found = []
        for draw in range(DRAWS):
            point = ((DRAWS * seed + draw + 1) * GOLDEN + np.arange(count) * GOLDEN**3) % 1.0
            share = 0.5 + MIDDLE * (point - 0.5)
            at = np.minimum(start + (share * np.maximum(size - 1, 0)).astype(np.intp), len(order) - 1)
            found.append(np.where(size > 0, self._inputs[column][by_node[at]], np.inf))
        return found

    def _gain(self, side: IntArray, count: int) -> FloatArray:
        """What a split explains of the squares, per node; 0 where a side would have too few rows."""
        rows = np.bincount(side, minlength=2 * count).reshape(-1, 2)
        weight = np.bincount(side, self._weights, 2 * count).reshape(-1, 2)
        total = np.bincount(side, self._weighted, 2 * count).reshape(-1, 2)
        allowed: BoolArray = rows.min(axis=1) >= LEAF_ROWS
        weight = np.where(allowed[:, None], weight, 1.0)
        explained = (total**2 / weight).sum(axis=1) - total.sum(axis=1) ** 2 / weight.sum(axis=1)
        return np.where(allowed, explained, 0.0)
