"""The interface of a loss.

A loss L(y, F) compares a target y with a raw score F. Training reads the *properties* that a loss declares (is its Hessian
constant? how are leaf values computed? which link leads from raw score to prediction?) and never tests which loss it is; so a
new loss is one new module here and a line in the registry.

Equation numbers in the losses' docstrings are those of J. Friedman, "Greedy function approximation: a gradient boosting
machine", Ann. Statist. 29(5), 2001.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np


class Loss:
    """Base class of all losses, built-in or custom.

    A custom loss defines `value`, `gradient` and `hessian` (arrays in, arrays out, with respect to the raw score) and, if
    predictions are not raw scores, `link` and `inverse_link`; see `losses.custom_loss`. With ``is_classification = True`` its
    targets are 0 and 1, and `inverse_link` returns the probability of 1.

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

    #: Name in files and in the `loss=` parameter; default: the name of the class.
    name: ClassVar[str] = ""
    #: True when d²L/dF² is 1 for every row, so that Hessian sums are counts (or sums of weights).
    constant_hessian: ClassVar[bool] = False
    #: False when `hessian` is a substitute, because the second derivative is zero or not useful.
    exact_hessian: ClassVar[bool] = True
    #: True when the target is a class.
    is_classification: ClassVar[bool] = False
    #: How the initial score and the leaf values are computed: "newton" steps; the "quantile" of the rows' residuals at
    #: `level`; or "huber", one step from their median.
    leaf_statistic: ClassVar[str] = "newton"
    #: The loss's parameters: keywords of `dboost.fit` and of its constructor.
    options: ClassVar[tuple[str, ...]] = ()
    #: Further arguments of its constructor, which the first iteration computes; stored in model files.
    learned: ClassVar[tuple[str, ...]] = ()
    #: Valid targets, as text: "non-negative" (and not all zero), "strictly positive", or "" for any.
    target_range: ClassVar[str] = ""
    #: Largest change of a raw score by one leaf (after the learning rate). Where the raw score is a logarithm, a Newton step
    #: far from the minimum is meaningless: with a Hessian near zero it would be in the thousands.
    longest_step: ClassVar[float] = math.inf
    #: Form of `inverse_link`, for exports: "identity", "exp", "sigmoid" or "softmax" of the raw score times `response_factor`.
    response: ClassVar[str] = "identity"
    response_factor: ClassVar[float] = 1.0
    #: Number of raw scores per row and of trees per iteration.
    n_outputs: int = 1
    #: Factor of Newton steps, for losses whose diagonal Hessian overstates the curvature.
    step_factor: float = 1.0
    #: Level of the quantile, for leaf_statistic "quantile".
    level: float = 0.5

    def __init_subclass__(cls) -> None:
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def terms(self) -> tuple[Any, ...]:
        """Return the `NamedTuple` for which this loss overloads `gradient_pass.block_terms`, with its parameters.

        For a custom loss, a record that holds the loss itself.
        """
        from dboost.losses.custom_loss import CustomTerms

        return CustomTerms(self)

    def best_constant(self, mean: float) -> float | None:
        """Return the raw score that minimises the loss over all rows, from the weighted mean of the target.

        None when the mean does not determine it: then it is computed by a search.
        """
        return None

    def magnitude(self, mean: float, largest: float) -> float | None:
        """Return about how large a row's loss can be at the start of training; it decides the unit of exact loss sums.

        mean, largest : weighted mean of the target, and its largest distance from that. None when these do not determine it:
        then the largest loss at the best constant is computed.
        """
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return name and parameters, as stored in model files."""
        from dboost.losses.custom_loss import custom_to_dict

        return custom_to_dict(self)

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        """Return the loss of each row."""
        raise NotImplementedError

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        """Return dL/dF of each row."""
        raise NotImplementedError

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        """Return d²L/dF² of each row."""
        raise NotImplementedError

    def link(self, prediction: np.ndarray) -> np.ndarray:
        """Return the raw scores of predictions."""
        return prediction

    def inverse_link(self, raw: np.ndarray) -> np.ndarray:
        """Return the predictions of raw scores (the probability of the second class for two-class losses)."""
        return raw
