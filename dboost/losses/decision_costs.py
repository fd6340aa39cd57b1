"""Cost-sensitive decisions: predict the class with the lowest expected cost."""

from __future__ import annotations

from typing import Any

import numpy as np

from dboost.errors import ParameterError


def read_costs(costs: Any, n_classes: int) -> np.ndarray:
    """Return a matrix of costs as float64[n_classes, n_classes].

    Raises
    ------
    ParameterError
        When it is not a matrix of finite numbers, one row and column for each class.
    """
    try:
        matrix = np.asarray(costs, np.float64)
    except (TypeError, ValueError) as error:
        raise ParameterError(f"costs must be a matrix of numbers: {error}") from None
    if matrix.shape != (n_classes, n_classes) or not np.isfinite(matrix).all():
        raise ParameterError(
            f"costs must be a matrix of finite numbers of shape {n_classes, n_classes}, one row and column for each class; it "
            f"has shape {matrix.shape}"
        )
    return matrix


def cheapest(probabilities: np.ndarray, costs: np.ndarray) -> np.ndarray:
    """Return argmin over k of Σ_j costs[k, j] p_j for each row (int64[n]); of classes with equal cost, the first.

    probabilities : float64[n, n_classes]; costs : float64[n_classes, n_classes].
    """
    return (probabilities @ costs.T).argmin(axis=1)
