"""The directions by which trees of several outputs are grown.

A tree with K values per leaf is one tree an iteration. Its structure is that of a tree for a single number per row: the
derivatives of the loss along a direction c in the space of the K raw scores, g_i · c and Σ_k c_k² h_ik (for classes the
variance of c under the row's probabilities). Leaf values are exact Newton steps of all outputs. So histograms, rounds and
messages are those of a model of one output.

Two kinds of directions take turns:

* in odd iterations (from 1) signs ±1 that are hashed from the seed and the number of the iteration: a random projection of the
  gradients (Iosipoi & Vakhrushev 2022, "SketchBoost", section 3.4, with sketch dimension 1). For classes such a tree boosts the
  log loss of a division of the classes into two groups (error-correcting output codes: Dietterich & Bakiri 1995);
* in even iterations the signs z, refined by one power step with the Gram matrix of the gradients, c = Σ_i w_i g_i (g_i · z):
  mostly what the gradients have in common (Halko, Martinsson & Tropp 2011, algorithm 4.3 with q = 1). The K sums are exact.

Directions have length 1, so that independent outputs of constant Hessian keep it. The gradient of each of them is divided by
its root mean square at the initial scores, so that targets in any unit count alike: c = D z, and c = D² Σ_i w_i g_i (g_i · D z)
with a diagonal matrix D. Directions of classes are centered, as adding a number to all scores of a row changes nothing, and
have length √K: their entries are about ±1, and Hessians are those of two classes, for which limits such as `min_hessian` are
meant.

The trees of a random forest have no later trees that divide what they leave together, and a node whose classes have equal signs
would never be split. Their directions are hashed numbers of about a normal distribution, none of which are equal.

A direction depends on the seed, the number of the iteration, and the gradients at the initial and the present scores, and on
nothing of earlier iterations: a fit that is continued or resumed has the directions of one that was not interrupted.
"""

from __future__ import annotations

import math

import numpy as np

from dboost.rows.row_sample import DIRECTIONS, derive_seed

#: Numbers in a sum that is about normal.
_PARTS = 6


class Directions:
    """The directions of a fit.

    Parameters
    ----------
    n_outputs : int
    of_classes : bool
        See `BaseLoss.has_classes`.
    seed : int
    scales : float64[n_outputs], optional
        Factors of the outputs' gradients. Default: 1 each.
    of_forest : bool, default False
        Whether the trees are those of a random forest.
    """

    def __init__(
        self, n_outputs: int, of_classes: bool, seed: int, scales: np.ndarray | None = None, *, of_forest: bool = False
    ) -> None:
        self._n_outputs, self.of_classes, self._seed, self._of_forest = n_outputs, of_classes, seed, of_forest
        self._scales = [1.0] * n_outputs if scales is None else scales.tolist()

    def is_refined(self, iteration: int) -> bool:
        """Whether the direction of an iteration (from 1) is refined by the gradients."""
        return iteration % 2 == 0 and not self._of_forest

    def drawn(self, iteration: int) -> np.ndarray:
        """Return the signs of an iteration, or the numbers of a forest's, as a direction: float32[n_outputs]."""
        if self._of_forest:
            return self._of_length([scale * self._number(iteration, k) for k, scale in enumerate(self._scales)])
        for attempt in range(64):
            hashes = (derive_seed(self._seed, DIRECTIONS, iteration, attempt, k) for k in range(self._n_outputs))
            signs = [1.0 if hashed >> 63 else -1.0 for hashed in hashes]
            if not self.of_classes or len(set(signs)) == 2:  # equal signs are no direction of classes
                break
        return self._of_length([scale * sign for scale, sign in zip(self._scales, signs, strict=True)])

    def _number(self, iteration: int, k: int) -> float:
        """Return a sum of hashed numbers between -0.5 and 0.5, which is about normal and the same on every machine."""
        hashes = (derive_seed(self._seed, DIRECTIONS, iteration, part, k) for part in range(_PARTS))
        return sum((hashed >> 11) * 2.0**-53 - 0.5 for hashed in hashes)

    def refined(self, products: np.ndarray) -> np.ndarray | None:
        """Return the direction that follows from Σ_i w_i g_i (g_i · c) (float64[n_outputs]) for the drawn direction c; None if
        there is none: all of them are 0, or, of classes, equal."""
        scaled = products * np.array(self._scales) ** 2
        largest = float(np.abs(scaled).max())
        if not 0 < largest < math.inf or (self.of_classes and np.ptp(scaled) == 0):
            return None
        return self._of_length((scaled / largest).tolist())

    def _of_length(self, direction: list[float]) -> np.ndarray:
        n = len(direction)
        if self.of_classes:
            mean = math.fsum(direction) / n
            direction = [component - mean for component in direction]
        length = math.sqrt(math.fsum(component * component for component in direction))
        factor = (math.sqrt(n) if self.of_classes else 1.0) / length
        return np.array([component * factor for component in direction], np.float32)
