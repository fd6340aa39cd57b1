"""An ensemble ready for prediction.

The trees are laid out for the kernels when a matrix of a float type is first met, and the rows are shared out among
threads. A row's score is ``((baseline + value) + value) + …`` in float64, in the order of the trees, which is also how
training adds them up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from dboost.kernels.lanes import LANES
from dboost.kernels.trees import Paged, Walked, ask, room_for, walk
from dboost.model.ensemble import Ensemble
from dboost.model.layout import lay_out

#: Rows × trees for which a thread is worth its start.
WORTH_A_THREAD = 100_000

Range = tuple[int, int]


class FlatEnsemble:
    """The trees of an ensemble, which any number of threads may ask at a time.

    Parameters
    ----------
    ensemble : Ensemble
    """

    def __init__(self, ensemble: Ensemble) -> None:
        self._ensemble = ensemble
        self._forests: dict[np.dtype, Paged | Walked] = {}

    def raw_scores(self, matrix: np.ndarray, iterations: Range | None = None, n_threads: int | None = None) -> np.ndarray:
        """Raw scores of the rows of a matrix.

        Parameters
        ----------
        matrix : float32 or float64 [n, n_features]
            As made by `dboost.sources.feature_block`: codes of the levels in categorical columns.
        iterations : (first, last), optional
            Only the trees of these iterations; the last one is not included.
        n_threads : int, optional
            Default: as many as there are processors that this process may use.

        Returns
        -------
        float64[n, n_outputs]
        """
        scores = np.tile(np.asarray(self._ensemble.baseline, np.float64), (len(matrix), 1))
        self.add_to(scores, matrix, iterations, n_threads)
        return scores

    def staged_raw_scores(self, matrix: np.ndarray, n_threads: int | None = None) -> Iterator[np.ndarray]:
        """Raw scores after one iteration, after two, …; each is the one before plus one iteration's trees."""
        scores = self.raw_scores(matrix, (0, 0))
        for iteration in range(self._ensemble.n_iterations):
            self.add_to(scores, matrix, (iteration, iteration + 1), n_threads)
            yield scores.copy()

    def add_to(
        self, scores: np.ndarray, matrix: np.ndarray, iterations: Range | None = None, n_threads: int | None = None
    ) -> None:
        """Add the leaf values of some iterations to raw scores (float64[n, n_outputs]) in place."""
        self._ask(matrix, iterations, n_threads, scores, np.empty((len(matrix), 0), np.int32))

    def leaves(self, matrix: np.ndarray, iterations: Range | None = None, n_threads: int | None = None) -> np.ndarray:
        """Number of the leaf that each row reaches in each tree, from left to right 0, 1, 2, …: int32[n, n_trees]."""
        first, last = self._trees(iterations)
        leaves = np.empty((len(matrix), last - first), np.int32)
        self._ask(matrix, iterations, n_threads, np.zeros((len(matrix), self._ensemble.n_outputs)), leaves)
        return leaves

    def _trees(self, iterations: Range | None) -> Range:
        first, last = iterations or (0, self._ensemble.n_iterations)
        return first * self._ensemble.n_outputs, last * self._ensemble.n_outputs

    def _ask(
        self,
        matrix: np.ndarray,
        iterations: Range | None,
        n_threads: int | None,
        scores: np.ndarray,
        leaves: np.ndarray,
    ) -> None:
        width = len(self._ensemble.features)
        if matrix.ndim != 2 or matrix.shape[1] != width:
            raise ValueError(f"expected a matrix of {width} columns, got one of shape {matrix.shape}")
        trees = self._trees(iterations)
        if trees[0] == trees[1]:
            return
        exact_in_single = matrix.dtype.kind == "f" and matrix.dtype.itemsize <= 4
        matrix = np.ascontiguousarray(matrix, np.float32 if exact_in_single else np.float64)
        forest = self._forest(matrix.dtype)
        kernel = ask if isinstance(forest, Paged) else walk

        def work(start: int, stop: int) -> None:
            room = room_for(forest.columns, forest.n_levels, matrix.dtype)
            kernel(*forest, matrix, (start, stop), trees, scores, leaves, *room)

        share_out(work, len(matrix), trees[1] - trees[0], n_threads)

    def _forest(self, precision: np.dtype) -> Paged | Walked:
        # Two threads may both find nothing and lay the trees out twice, to the same effect.
        if precision not in self._forests:
            self._forests[precision] = lay_out(self._ensemble.trees, self._ensemble.features, precision)
        return self._forests[precision]


def share_out(work: Callable[[int, int], None], n_rows: int, n_trees: int, n_threads: int | None) -> None:
    """Call ``work(start, stop)`` for stretches of rows, on several threads where that pays."""
    if n_threads is None:
        n_threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    n_threads = min(n_threads, n_rows * n_trees // WORTH_A_THREAD)
    if n_threads <= 1:
        return work(0, n_rows)
    # Whole blocks, and more stretches than threads: one that is held up does not hold up the others.
    stretch = -(-n_rows // (4 * n_threads * LANES)) * LANES
    starts = range(0, n_rows, stretch)
    with ThreadPoolExecutor(n_threads) as pool:
        for _ in pool.map(work, starts, [min(start + stretch, n_rows) for start in starts]):
            pass
