"""The user's own losses.

A custom loss is a subclass of `Loss` in NumPy, registered by name, whose derivatives are checked before training. It is a class
with `value`, `gradient` and `hessian` (arrays in, arrays out, each row independent of the others), and `link` and
`inverse_link` if predictions are not raw scores. It must be a function of the target and the score only, so training may
divide the rows in any way. Its attributes (numbers, text, lists of them) are stored in model files; a loaded model finds the
class by its name, which `register` makes known.

`CustomLoss` makes a loss with the records of `losses.base` from it. This is the only place where the axis of the outputs is
left out: the methods of a custom loss of one output get and return arrays float64[n].

The check compares `gradient` with difference quotients of `value`, and `hessian` with those of `gradient`, on targets of the
training data and scores around them. A few rows may disagree: at a kink of the loss, quotients are meaningless. Step lengths
are tried in proportion to the score, and to its distance from the best score: a loss may curve within 1 where targets are in
the billions. Rows whose scores are so large that floats have no such short steps are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from dboost.errors import ParameterError
from dboost.exact import ExactSum
from dboost.losses.base import AllRows, BaseLoss, Leaves, Link, PartOfRows, RowStatistic, Start, Targets
from dboost.losses.gradient_pass import LARGEST
from dboost.losses.gradient_stats import GradientStats
from dboost.losses.terms import GradientPass, LossTerms
from dboost.tracebacks import short_traceback


class Loss:
    """Base class of custom losses.

    A custom loss defines `value`, `gradient` and `hessian` (arrays in, arrays out, with respect to the raw score) and, if
    predictions are not raw scores, `link` and `inverse_link`; see `losses.custom`. With ``is_classification = True`` its
    targets are 0 and 1, and `inverse_link` returns the probability of 1.

    A loss of K outputs declares ``n_outputs = K`` and may name them in `output_names`. Its raw scores, derivatives and
    predictions are float64[K, n]; the Hessian of an output is the second derivative by its own score.

    Examples
    --------
    >>> class LogCosh(Loss):
    ...     def value(self, y, raw):
    ...         return np.logaddexp(raw - y, y - raw) - np.log(2)  # log(cosh(raw - y)), which would overflow
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
    #: Number of raw scores per row. With several, `raw` of all methods, gradients, Hessians and predictions have the shape
    #: [n_outputs, n].
    n_outputs: int = 1
    #: Names of several outputs; default: their numbers from 0.
    output_names: tuple[str, ...] = ()
    #: Largest change of a raw score by one leaf (after the learning rate).
    longest_step: ClassVar[float] = math.inf
    #: Form of `inverse_link`, for exports: "identity", "exp", "sigmoid" or "softmax" of the raw score times `response_factor`.
    response: ClassVar[str] = "identity"
    response_factor: ClassVar[float] = 1.0
    #: Which targets the loss takes, if these are not one column of numbers or classes. A loss of several columns gets
    #: float64[n_columns, n] as y in its methods.
    targets: Targets = Targets()
    #: The first raw scores, if they follow from the mean target. Default: they are found by a search.
    start: Start = Start()
    #: What gradients need to know of all rows, see `with_statistic`.
    statistic: RowStatistic | None = None
    #: Attributes that the first iteration computes.
    learned: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        try:
            settings = custom_to_dict(self)
        except ParameterError:  # an attribute that cannot be stored
            settings = vars(self)
        shown = "".join(f", {name}={value!r}" for name, value in settings.items() if name != "name")
        return f"<Loss: {self.name}{shown}>"

    def __init_subclass__(cls) -> None:
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        """Return the loss of each row."""
        raise _undefined(self, "value")

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        """Return dL/dF of each row."""
        raise _undefined(self, "gradient")

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        """Return d²L/dF² of each row."""
        raise _undefined(self, "hessian")

    def link(self, prediction: np.ndarray) -> np.ndarray:
        """Return the raw scores of predictions."""
        return prediction

    def inverse_link(self, raw: np.ndarray) -> np.ndarray:
        """Return the predictions of raw scores (the probability of the second class for two-class losses)."""
        return raw

    def with_statistic(self, statistic: Any) -> Loss:
        """Return the loss with that value of its `statistic`."""
        return self


def _undefined(loss: Loss, method: str) -> ParameterError:
    return ParameterError(f"loss {loss.name!r} has no method {method}: a loss defines value, gradient and hessian")


#: Attributes that a custom loss had, and what to declare instead.
_MOVED = {
    "best_constant": "start = dboost.losses.Start(constants=function)",
    "best_constants": "start = dboost.losses.Start(constants=function)",
    "target_columns": "targets = dboost.losses.Targets(columns=names)",
}


class CustomLoss(BaseLoss):
    """The loss that training and models have of a custom loss.

    Parameters
    ----------
    loss : Loss
    """

    def __init__(self, loss: Loss) -> None:
        for name, record in _MOVED.items():
            if hasattr(loss, name):
                raise ParameterError(f"loss {loss.name!r} has {name}, which is part of a record now: {record}")
        if loss.targets.groups:
            raise ParameterError(f"loss {loss.name!r} depends on groups of rows, which takes a compiled function")
        self.given = loss
        self.name = loss.name  # type: ignore[misc]
        self.learned = loss.learned  # type: ignore[misc]
        self.exact_hessian, self.statistic = loss.exact_hessian, loss.statistic
        leaves = Leaves(longest_step=loss.longest_step, constant_hessian=loss.constant_hessian)
        self.leaves = (leaves,) * loss.n_outputs

    def __repr__(self) -> str:
        return repr(self.given)

    @property
    def public(self) -> Loss:
        return self.given

    @property
    def targets(self) -> Targets:  # type: ignore[override]
        loss = self.given
        return replace(loss.targets, are_classes=True) if loss.is_classification else loss.targets

    @property
    def start(self) -> Start:  # type: ignore[override]
        return self.given.start

    @property
    def link(self) -> Link:  # type: ignore[override]
        loss = self.given
        return Link(
            to_raw=self._to_raw,
            to_prediction=self._to_prediction,
            form=loss.response,
            factor=loss.response_factor,
            output_names=loss.output_names,
        )

    def _of_outputs(self, values: Any) -> np.ndarray:
        """Return what a method has returned for each raw score with the axis of the outputs."""
        values = np.asarray(values)
        return values[None] if self.n_outputs == 1 else values

    def _to_raw(self, prediction: np.ndarray) -> np.ndarray:
        return self._of_outputs(self.given.link(_scores(prediction)))

    def _to_prediction(self, raw: np.ndarray) -> np.ndarray:
        return self._of_outputs(self.given.inverse_link(_scores(raw)))

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return self.given.value(y, _scores(raw))

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return self._of_outputs(self.given.gradient(y, _scores(raw)))

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        return self._of_outputs(self.given.hessian(y, _scores(raw)))

    def slopes(self, output: int, y: np.ndarray, raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        gradient, hessian = super().slopes(output, y, raw)
        return gradient.astype(np.float64, copy=False), hessian.astype(np.float64, copy=False)

    def terms(self) -> None:
        return None

    def pass_terms(self, statistic: Any = None) -> CustomTerms:
        return CustomTerms(self.given if statistic is None else self.given.with_statistic(statistic))

    def verify(self, rows: AllRows) -> None:
        message = rows.merged(_flaw_of_part, _first_flaw, self.given)
        if message is not None:
            raise ParameterError(message)
        register(self.given)

    def with_statistic(self, statistic: Any) -> CustomLoss:
        return CustomLoss(self.given.with_statistic(statistic))

    def to_dict(self) -> dict[str, Any]:
        return custom_to_dict(self.given)

    def as_parameter(self) -> Loss:
        return self.given


def _flaw_of_part(rows: PartOfRows, loss: Loss) -> str | None:
    return check_derivatives(loss, rows.target) if rows.target.size else None


def _first_flaw(a: str | None, b: str | None) -> str | None:
    return b if a is None else a


def as_loss(loss: BaseLoss | Loss) -> BaseLoss:
    """Return a loss of the user's, or of dboost, as training has it."""
    return CustomLoss(loss) if isinstance(loss, Loss) else loss


#: Number of rows that are checked, and the share of them that must agree.
N_CHECKED = 200
_AGREEING_SHARE = 0.95
_PLAIN = (bool, int, float, str, type(None))

_KNOWN: dict[str, type[Loss]] = {}


@dataclass(frozen=True)
class CustomTerms(LossTerms):
    """A loss whose functions are in NumPy: its methods are called for the rows."""

    loss: Loss

    def advance(self, gradient_pass: GradientPass) -> GradientStats:
        rows, values, loss_unit, _, first, last, _ = gradient_pass
        part = slice(first, last)
        raw, y, hessians = rows.raw[:, part], rows.targets(first, last), rows.hessian
        for scores, of_leaves, leaf in zip(raw, values, rows.leaf[:, part], strict=True):
            scores += of_leaves[leaf]
        with np.errstate(all="ignore"):
            value, gradient, hessian = (
                call_custom(self.loss, method, y, _scores(raw)) for method in ("value", "gradient", "hessian")
            )
            if rows.weight is not None:
                weight = rows.weight[part]
                value = value * weight
                if rows.repeat_count is None:
                    gradient, hessian = gradient * weight, hessian * weight
            rows.gradient[:, part] = gradient
            if hessians is not None:
                hessians[:, part] = np.maximum(hessian, 0.0)
            in_units = np.nan_to_num(np.clip(value * loss_unit, -LARGEST, LARGEST))
        loss_sum = ExactSum.of(in_units, 1.0)
        max_gradient = _largest(rows.gradient[:, part])
        max_hessian = np.ones(len(raw)) if hessians is None else _largest(hessians[:, part])
        return GradientStats(max_gradient, max_hessian, float(loss_sum.coarse), loss_sum.fine)


def _largest(derivatives: np.ndarray) -> np.ndarray:
    """Return the largest magnitude of each output: float64[n_outputs]."""
    return np.abs(derivatives).max(axis=1, initial=0.0).astype(np.float64)


@short_traceback
def register(loss: type[Loss] | Loss) -> None:
    """Make a custom loss known by its name, so that models trained with it can be loaded and predict.

    A fit does this by itself; it is needed in a process that only loads.

    Parameters
    ----------
    loss : subclass of Loss, or an instance
    """
    kind = loss if isinstance(loss, type) else type(loss)
    if not issubclass(kind, Loss):
        raise ParameterError(f"a custom loss is a subclass of dboost.losses.Loss, which {kind.__name__} is not")
    _KNOWN[kind.name] = kind


def custom_from_dict(stored: dict[str, Any]) -> Loss:
    """Return the custom loss that a model file names.

    Raises
    ------
    ParameterError
        When no class of that name is known.
    """
    state = dict(stored)
    name, _ = state.pop("name"), state.pop("outputs", None)
    if name not in _KNOWN:
        raise ParameterError(
            f"the model was trained with the loss {name!r}, which is not known here: call dboost.losses.register with its "
            "class, or load the model with dboost.load(path, loss=...); raw scores can be predicted without it"
        )
    loss = _KNOWN[name].__new__(_KNOWN[name])
    vars(loss).update(state)
    return loss


def custom_to_dict(loss: Loss) -> dict[str, Any]:
    """Return name and attributes.

    Raises
    ------
    ParameterError
        Naming an attribute that cannot be stored.
    """
    for name, value in vars(loss).items():
        if not (isinstance(value, _PLAIN) or (isinstance(value, list) and all(isinstance(v, _PLAIN) for v in value))):
            raise ParameterError(
                f"loss {loss.name!r} cannot be stored in a model: its attribute {name!r} is a {type(value).__name__}, not a "
                "number, text or a list of these"
            )
    names = {"outputs": list(loss.output_names)} if loss.output_names else {}
    return {"name": loss.name} | names | vars(loss)


def call_custom(loss: Loss, method: str, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
    """Call a method of a custom loss for some rows: float64[n], derivatives in the shape of the raw scores.

    Raises
    ------
    ParameterError
        When the method returns another shape, or something else than numbers.
    """
    # The arrays are those of training: a method that writes into them would change the model.
    y, raw = y.view(), raw.view()
    y.flags.writeable = raw.flags.writeable = False
    result = getattr(loss, method)(y, raw)
    n = raw.shape[-1]
    shape = (n,) if method == "value" else raw.shape
    if np.shape(result) != shape:
        raise ParameterError(f"{method} of loss {loss.name!r} returned shape {np.shape(result)} for {n} rows, not {shape}")
    return _numbers(loss, method, result)


def _numbers(loss: Loss, method: str, result: Any) -> np.ndarray:
    """Return what a method of a custom loss has returned as float64[…]; ParameterError if it holds something else."""
    kind = np.asarray(result).dtype
    if kind.kind not in "biuf":
        raise ParameterError(f"{method} of loss {loss.name!r} returned values of type {kind}: an array of numbers is needed")
    return np.asarray(result, np.float64)


@np.errstate(all="ignore")
def check_derivatives(loss: Loss, y: np.ndarray) -> str | None:
    """Return what is wrong with a custom loss, tested on some targets of the training data; None when nothing is."""
    y = y[..., :N_CHECKED]
    rng, n, k = np.random.default_rng(0), int(y.shape[-1]), loss.n_outputs
    if k == 1:
        raw = rng.normal(size=n) * 2.0
        best = _numbers(loss, "link", loss.link(loss.targets.locations(y)))
        near = best + rng.normal(size=n)
        raw = np.where((np.arange(n) % 2 == 0) & np.isfinite(near), near, raw)
    else:  # what the scores of several outputs mean is known to the loss only
        raw, best = rng.normal(size=(k, n)) * 2.0, np.zeros((k, n))
    for output in range(k):
        wrong = _wrong_derivative(loss, y, np.atleast_2d(raw), np.atleast_2d(best)[output], output)
        if wrong is not None:
            return wrong
    prediction = _numbers(loss, "inverse_link", loss.inverse_link(raw))
    if prediction.shape != raw.shape:
        return f"inverse_link of loss {loss.name!r} returned shape {prediction.shape} for raw scores of shape {raw.shape}"
    again = np.asarray(loss.inverse_link(loss.link(prediction)), np.float64)
    if not np.allclose(again, prediction, rtol=1e-6, atol=1e-9, equal_nan=True):
        return f"link and inverse_link of loss {loss.name!r} are not inverse to each other"
    return None


def _wrong_derivative(loss: Loss, y: np.ndarray, raw: np.ndarray, best: np.ndarray, output: int) -> str | None:
    """Return what is wrong with the derivatives by the raw score of one output. raw : float64[n_outputs, n]."""
    of_output = raw[output]
    far = np.nan_to_num(np.maximum(np.abs(of_output - best), 1.0), nan=1.0)
    longer = 1e-5 * np.maximum(np.abs(of_output), 1.0)
    shorter = np.maximum(1e-5 * far, 8.0 * np.spacing(np.abs(of_output)))
    suffix = "" if len(raw) == 1 else f" of output {output}"

    def called(method: str, scores: np.ndarray) -> np.ndarray:
        moved = raw.copy()
        moved[output] = scores
        result = call_custom(loss, method, y, _scores(moved))
        return result if result.ndim == 1 else result[output]

    methods = [("gradient", "value")] + [("hessian", "gradient")] * loss.exact_hessian
    for derivative, function in methods:
        derivatives = called(derivative, of_output)
        agrees = np.zeros(len(of_output), bool)
        for step in (shorter, longer):
            high, low = of_output + step, of_output - step
            above, below = called(function, high), called(function, low)
            quotient = (above - below) / (high - low)
            noise = 1e-13 * np.maximum(np.abs(above), np.abs(below)) / step
            size = np.abs(quotient)
            usual = np.median(size[np.isfinite(size)]) if np.isfinite(size).any() else 0.0
            agrees |= np.abs(derivatives - quotient) <= 1e-4 * (size + usual) + noise + 1e-9
            agrees |= ~np.isfinite(quotient)  # the function overflows there, so far from the target
        is_wrong = ~agrees & (shorter < 1e-3 * far)
        if is_wrong.sum() > (1 - _AGREEING_SHARE) * (agrees | is_wrong).sum():
            i = int(np.argmax(is_wrong))
            kind = np.asarray(getattr(loss, function)(y, _scores(raw.copy()))).dtype
            hint = "" if kind.kind != "f" or kind.itemsize >= 8 else f"; its {function} is {kind}: compute in float64"
            return (
                f"{derivative}{suffix} of loss {loss.name!r} is not the derivative of its {function} by the raw score: for "
                f"y={_shown(y, i)} and raw={_shown(_scores(raw), i)} it says {derivatives[i]:g}, the difference quotient "
                f"{quotient[i]:g}{hint}"
            )
    hessian = called("hessian", of_output)
    if (hessian < 0).any():
        i = int(np.argmin(hessian))
        return (
            f"hessian{suffix} of loss {loss.name!r} is {hessian[i]:g} for y={_shown(y, i)} and "
            f"raw={_shown(_scores(raw), i)}, which must not be below 0; a "
            "stand-in is allowed if the class says exact_hessian = False"
        )
    return None


def _scores(raw: np.ndarray) -> np.ndarray:
    """Return raw scores (float64[n_outputs, n]) as the methods of custom losses take them."""
    return raw[0] if len(raw) == 1 else raw


def _shown(y: np.ndarray, i: int) -> str:
    return f"{y[i]:g}" if y.ndim == 1 else f"({', '.join(f'{value:g}' for value in y[:, i])})"
