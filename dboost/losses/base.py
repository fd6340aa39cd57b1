"""What a loss declares.

A loss L(y, F) compares a target y with a raw score F. Training asks a loss *what it is* (is its Hessian constant? how is a
leaf's value found? which link leads from raw score to prediction?) and never which one it is; so a new loss is one new
file here and a line in the registry.

Equation numbers in the losses' docstrings are those of J. Friedman, "Greedy function approximation: a gradient boosting
machine", Ann. Statist. 29(5), 2001.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np


class Loss:
    """Base class of all losses, built in or a user's own.

    A user's loss defines `value`, `gradient` and `hessian` (arrays in, arrays out, with respect to the raw score) and, if
    predictions are not raw scores, `link` and `inverse_link`; see `losses.custom_loss`. With ``is_classification = True`` its
    targets are 0 and 1, and `inverse_link` tells the probability of 1.

    Examples
    --------
    >>> class LogCosh(Loss):
    ...     def value(self, y, raw):
    ...         return np.log(np.cosh(raw - y))
    ...     def gradient(self, y, raw):
    ...         return np.tanh(raw - y)
    ...     def hessian(self, y, raw):
    ...         return 1 - np.tanh(raw - y) ** 2
    """

    #: Name in files and in the `loss=` parameter; by default that of the class.
    name: ClassVar[str] = ""
    #: True when d²L/dF² is 1 for every row, so that Hessian sums are counts (or sums of weights).
    constant_hessian: ClassVar[bool] = False
    #: False when `hessian` is a stand-in, because the second derivative vanishes or is no guide.
    exact_hessian: ClassVar[bool] = True
    #: True when the target is a class.
    is_classification: ClassVar[bool] = False
    #: How the first score and the leaf values are found: "newton" steps; the "quantile" of the rows' residuals of `level`; or
    #: "huber", one step from their median.
    leaf_statistic: ClassVar[str] = "newton"
    #: The keywords of `dboost.fit` that are its parameters, and those of its constructor.
    options: ClassVar[tuple[str, ...]] = ()
    #: What else its constructor takes: found out by the first iteration, and kept in model files.
    learned: ClassVar[tuple[str, ...]] = ()
    #: What targets must be, in words: "non-negative" (and not all zero), "strictly positive", or nothing.
    target_range: ClassVar[str] = ""
    #: No leaf moves a raw score by more at a time (times the learning rate). Where the raw score is a logarithm, a Newton
    #: step from far away is meaningless: with a Hessian near zero it would be thousands.
    longest_step: ClassVar[float] = math.inf
    #: Form of `inverse_link`, for formats of others: "identity", "exp", "sigmoid" or "softmax" of the raw score times a factor.
    response: ClassVar[str] = "identity"
    response_factor: ClassVar[float] = 1.0
    #: Raw scores of a row, which is also the number of trees an iteration.
    n_outputs: int = 1
    #: What a Newton step is multiplied by, where the diagonal Hessian is known to overstate the curvature.
    step_factor: float = 1.0
    #: The level of quantiles.
    level: float = 0.5

    def __init_subclass__(cls) -> None:
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def terms(self) -> tuple[Any, ...]:
        """The `NamedTuple` for which this loss overloads `loss_pass.block_terms`; its fields are the loss's parameters.

        Of a user's loss one that holds the loss itself.
        """
        from dboost.losses.custom_loss import CustomTerms

        return CustomTerms(self)

    def best_constant(self, mean: float) -> float | None:
        """The raw score that minimises the loss over all rows, from the weighted mean of the target.

        None when that does not tell it: then it is searched for.
        """
        return None

    def magnitude(self, mean: float, largest: float) -> float | None:
        """About how large a row's loss can be at the beginning; decides the unit of exact loss sums.

        mean, largest : weighted mean of the target, and its largest distance from that. None when these do not tell it:
        then the largest loss at the best constant is looked for.
        """
        return None

    def to_dict(self) -> dict[str, Any]:
        """Name and parameters, as stored in model files."""
        from dboost.losses.custom_loss import custom_to_dict

        return custom_to_dict(self)

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        """Loss of each row."""
        raise NotImplementedError

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        """dL/dF of each row."""
        raise NotImplementedError

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        """d²L/dF² of each row."""
        raise NotImplementedError

    def link(self, prediction: np.ndarray) -> np.ndarray:
        """Raw score that belongs to a prediction."""
        return prediction

    def inverse_link(self, raw: np.ndarray) -> np.ndarray:
        """Prediction that belongs to a raw score (the probability of the second class for two-class losses)."""
        return raw
