"""The interface of a loss, and the user's own losses.

A loss L(y, F) compares a target y with a raw score F. Training reads the *properties* that a loss declares (is its Hessian
constant? how are leaf values computed? which link leads from raw score to prediction?) and never tests which loss it is; so a
new loss is one new module here, and its class in the registry.

Equation numbers in the losses' docstrings are those of J. Friedman, "Greedy function approximation: a gradient boosting
machine", Ann. Statist. 29(5), 2001.

**Custom losses** are subclasses of `Loss` in NumPy, registered by name, whose derivatives are checked before training. Such a
loss is a class with `value`, `gradient` and `hessian` (arrays in, arrays out, each row independent of the others), and `link`
and `inverse_link` if predictions are not raw scores. It must be a function of the target and the score only, so training may
divide the rows in any way. Its attributes (numbers, text, lists of them) are stored in model files; a loaded model finds the
class by its name, which `register` makes known.

The check compares `gradient` with difference quotients of `value`, and `hessian` with those of `gradient`, on targets of the
training data and scores around them. A few rows may disagree: at a kink of the loss, quotients are meaningless. Step lengths
are tried in proportion to the score, and to its distance from the best score: a loss may curve within 1 where targets are in
the billions. Rows whose scores are so large that floats have no such short steps are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dboost.display import number
from dboost.errors import DataError, ParameterError
from dboost.exact import ExactSum
from dboost.losses.gradient_pass import LARGEST
from dboost.losses.gradient_stats import GradientStats
from dboost.losses.terms import GradientPass, KernelTerms, LossTerms


class PartOfRows(NamedTuple):
    """Some training rows with their raw scores."""

    target: np.ndarray  # float64[n], of a loss of several target columns float64[n_columns, n]
    raw: np.ndarray  # float64[n_outputs, n]
    weight: np.ndarray | None  # float64[n]; None for 1

    def of_output(self, output: int, column: int) -> PartOfRows:
        """Return the rows for the loss of one output alone, whose target is that column."""
        return PartOfRows(one_target(self.target, column), self.raw[output : output + 1], self.weight)


def one_target(target: np.ndarray, column: int) -> np.ndarray:
    """Return one column of targets (float64[n], or [n_columns, n]): float64[n]."""
    return target if target.ndim == 1 else target[column]


def loss_scores(raw: np.ndarray) -> np.ndarray:
    """Return raw scores (float64[n_outputs, n]) as the methods of losses take them: [n] of a single output."""
    return raw[0] if len(raw) == 1 else raw


@dataclass(frozen=True, eq=False)
class AllRows:
    """All training rows of a fit, wherever they are, at their present raw scores."""

    #: ``merged(part, merge, *arguments)`` calls ``part(rows, *arguments)`` for parts of the rows (`PartOfRows`) and merges the
    #: results. Both functions are defined at the top level of a module, because they are pickled, and the result must not
    #: depend on how the rows are divided.
    merged: Callable[..., Any]
    n_rows: int  # with integer weights the sum of the weights
    max_weight: float  # 1 with integer weights


@dataclass(frozen=True, eq=False)
class InitialRows:
    """What the initial score of a loss may follow from."""

    rows: AllRows  # with their offsets, or zero, as raw scores
    means: np.ndarray  # weighted means of `Loss.target_sums`
    has_offset: bool  # whether there are offsets that have an effect, see `Loss.uses_offset`
    #: Given constants to begin at (float64[n_outputs]), returns those that minimize the loss if they are added to all offsets:
    #: by Newton's method, one output after the other.
    search: Callable[[np.ndarray], np.ndarray]


class RowStatistic:
    """What the gradients of a loss depend on beside their own row: a statistic of all training rows.

    It is computed after every change of the scores; the gradients are then computed again, see `Loss.pass_terms`.
    """

    def of(self, rows: AllRows, before: Any = None) -> Any:
        """Return the statistic at the present scores. before : that of earlier scores, which may save time, or None."""
        raise NotImplementedError


class SumUnits(NamedTuple):
    """Units of exact sums."""

    target: float  # of weighted targets
    weight: float
    is_whole: bool  # whether all weights are integers, so that a row of weight n is added n times


class Loss:
    """Base class of all losses, built-in or custom.

    A custom loss defines `value`, `gradient` and `hessian` (arrays in, arrays out, with respect to the raw score) and, if
    predictions are not raw scores, `link` and `inverse_link`; see `losses.base`. With ``is_classification = True`` its
    targets are 0 and 1, and `inverse_link` returns the probability of 1.

    A loss of K outputs declares ``n_outputs = K`` and may name them in `output_names`. Its raw scores, derivatives and
    predictions are float64[K, n]; the Hessian of an output is the second derivative by its own score.

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
    #: True when the loss is linear on both sides of the target: then a row has the gradient of the iteration before unless its
    #: score has passed the target.
    is_piecewise_linear: ClassVar[bool] = False
    #: True when the target is a class.
    is_classification: ClassVar[bool] = False
    #: How leaf values are computed: "newton" steps, or the "quantile" of the rows' residuals at `level`.
    leaf_statistic: ClassVar[str] = "newton"
    #: Whether one step from that quantile follows: the mean of the residuals around it, clipped at the `statistic`.
    has_clipped_step: ClassVar[bool] = False
    #: What the columns of the target are, for messages. A loss of several gets float64[n_columns, n] as y in its methods;
    #: compiled functions take one column.
    target_columns: ClassVar[tuple[str, ...]] = ("target",)
    #: Whether a number that is added to all raw scores of a row changes its loss.
    uses_offset: ClassVar[bool] = True
    #: Whether predictions rise with each raw score, so that monotonic constraints have a meaning.
    is_monotonic: ClassVar[bool] = True
    #: The loss's parameters: keywords of `dboost.fit` and of its constructor.
    options: ClassVar[tuple[str, ...]] = ()
    #: Further arguments of its constructor, which the first iteration computes; stored in model files.
    learned: ClassVar[tuple[str, ...]] = ()
    #: Valid targets, as text: "non-negative" (and not all zero), "strictly positive", or "" for any.
    target_range: ClassVar[str] = ""
    #: Largest change of a raw score by one leaf (after the learning rate). Where the raw score is a logarithm, a Newton step
    #: far from the minimum is meaningless: with a Hessian near zero it would be in the thousands.
    longest_step: ClassVar[float] = math.inf
    #: True when L(a y, a F) = a² L(y, F), so that training may use any unit of the target.
    scales_with_target: ClassVar[bool] = False
    #: Whether the influence of rows is known, which `influence_trimming` needs: `terms` have a field ``counts_influence``.
    can_trim: ClassVar[bool] = False
    #: Names of metrics in `metrics.named` that apply to this loss, beside those of all losses of numbers or classes.
    own_metrics: ClassVar[tuple[str, ...]] = ()
    #: Form of `inverse_link`, for exports: "identity", "exp", "sigmoid" or "softmax" of the raw score times `response_factor`.
    response: ClassVar[str] = "identity"
    response_factor: ClassVar[float] = 1.0
    #: Whether raw scores are probabilities, to which no offset can be added.
    scores_are_probabilities: ClassVar[bool] = False
    #: Of two classes: the raw score at which they are equally probable.
    even_score: ClassVar[float] = 0.0
    #: Number of raw scores per row. With several, `raw` of all methods, gradients, Hessians and predictions have the shape
    #: [n_outputs, n].
    n_outputs: int = 1
    #: The losses of the outputs alone, if they are independent (`per_output.PerOutput`): this loss is their mean.
    parts: tuple[Loss, ...] = ()
    #: Whether a row of several outputs has one prediction, see `point`.
    predicts_one: ClassVar[bool] = False
    #: Names of several outputs; default: their numbers from 0.
    output_names: tuple[str, ...] = ()
    #: The target column of each of the `parts`.
    columns: tuple[int, ...] = ()
    #: Whether the raw scores are those of classes, of which each row has one: gradients are p - [class] with probabilities p,
    #: and second derivatives along a direction c are variances of c under p. Otherwise the scores of a row are independent.
    has_classes: ClassVar[bool] = False
    #: Factor of Newton steps, for losses whose diagonal Hessian overstates the curvature.
    step_factor: float = 1.0
    #: Derivatives in kernels are those by the raw score in this unit; leaf values are steps times the unit.
    score_unit: float = 1.0
    #: The outputs that an offset is added to.
    offset_outputs: ClassVar[slice] = slice(None)
    #: The magnitude is at least this, see `magnitude`.
    least_magnitude: ClassVar[float] = 1e-200
    #: Level of the quantile, for leaf_statistic "quantile".
    level: float = 0.5
    #: What gradients need to know of all rows.
    statistic: RowStatistic | None = None

    def __repr__(self) -> str:
        try:
            settings = self.to_dict()
        except ParameterError:  # an attribute that cannot be stored
            settings = vars(self)
        shown = "".join(f", {name}={value!r}" for name, value in settings.items() if name != "name")
        return f"<Loss: {self.name}{shown}>"

    def __init_subclass__(cls) -> None:
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def terms(self) -> tuple[Any, ...] | None:
        """Return the `NamedTuple` for which this loss overloads `gradient_pass.block_terms`, or with several outputs
        `output_terms`; with its parameters. None if the loss has functions in NumPy only."""
        return None

    def pass_terms(self, statistic: Any = None) -> LossTerms:
        """Return the record for passes over rows. statistic : of the rows at their present scores, see `Loss.statistic`."""
        record = self.terms()
        if record is not None:
            return KernelTerms(record)
        return CustomTerms(self if statistic is None else self.with_statistic(statistic))

    def with_statistic(self, statistic: Any) -> Loss:
        """Return the loss with that value of its `statistic`; the model has that of the first iteration."""
        return self

    def started(self, baseline: np.ndarray) -> Loss:
        """Return the loss with what it has `learned` from the initial raw scores (float64[n_outputs])."""
        return self

    def continued(self, stored: dict[str, Any]) -> Loss:
        """Return the loss with what that of the model that is continued has learned. stored : its record."""
        return self

    def comparable(self, losses: tuple[float, float], weight: float) -> tuple[float, float]:
        """Return the total losses of a model and of the best constant so that the model's is their share that is left.

        weight : total weight of the rows.
        """
        return losses

    def in_unit(self, unit: float) -> Loss:
        """Return the loss for targets and raw scores divided by `unit`; see `scales_with_target`."""
        return self

    def check_columns(self, n_columns: int) -> None:
        """Raise a DataError if the loss does not take so many target columns."""
        wanted = len(self.target_columns)
        if n_columns == wanted:
            return
        if wanted == 1:
            raise DataError(
                f"the target has {n_columns} columns, but loss={self.name!r} takes one: fit a model for each column, or make "
                "one column of them"
            )
        columns = f"{n_columns} column{'s' * (n_columns > 1)}"
        raise DataError(f"the target has {columns}, but loss={self.name!r} takes {wanted}: {', '.join(self.target_columns)}")

    @property
    def target_rule(self) -> str:
        """What `invalid_targets` are not, for messages."""
        return "non-negative y and sum(y) > 0" if self.target_range == "non-negative" else f"{self.target_range} y"

    def refusal(self, y: np.ndarray) -> str:
        """Return why the target of one row (a number, or float64[n_columns]), one of `invalid_targets`, is refused."""
        found = ", ".join(map(number, np.atleast_1d(y)))
        return f"loss={self.name!r} requires {self.target_rule}: the target is {found}"

    def invalid_targets(self, y: np.ndarray) -> np.ndarray | None:
        """Return which targets (float64[n], or [n_columns, n]) are outside `target_range`: bool[n]; None if all are valid."""
        return y < 0 if self.target_range == "non-negative" else y <= 0 if self.target_range else None

    def target_location(self, y: np.ndarray) -> np.ndarray:
        """Return one finite number for each target, about the best prediction: float64[n]."""
        return y

    def target_sums(self, y: np.ndarray, weight: np.ndarray | None, units: SumUnits) -> list[ExactSum]:
        """Return the weighted sums of which `best_constants` takes the means: that of the targets."""
        y = self.target_location(y)
        with np.errstate(over="ignore", invalid="ignore"):  # a fit raises an error for infinite sums
            if weight is None or units.is_whole:
                return [ExactSum.of(y, units.target, weight)]
            return [ExactSum.of(y * weight, units.target)]

    def of_output(self, output: int) -> Loss:
        """Return the loss that leaf values of one output follow from."""
        return self.parts[output] if self.parts else self

    def ordered(self, raw: np.ndarray) -> np.ndarray:
        """Return raw scores (float64[n_outputs, n]) so that those of an output are its own; quantiles are sorted."""
        return raw

    def with_parts(self, parts: Sequence[Loss]) -> Loss:
        """Return the loss with other `parts`."""
        raise NotImplementedError

    def statistic_of(self, output: int, statistic: Any) -> Any:
        """Return the `statistic` of the loss of one output."""
        return statistic

    def slopes(self, output: int, y: np.ndarray, raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return first and second derivative by one output's raw score: float64[n]. raw : float64[n_outputs, n]."""
        of_rows = loss_scores(raw)
        gradient, hessian = (
            np.asarray(derivative(y, of_rows), np.float64).reshape(raw.shape)[output]
            for derivative in (self.gradient, self.hessian)
        )
        return gradient, hessian

    def is_stored_as(self, stored: dict[str, Any]) -> bool:
        """Return whether a model with that record was trained with this loss, apart from what it has learned."""
        given = {name: value for name, value in self.to_dict().items() if name not in self.learned}
        return stored == stored | given

    def start(self, rows: InitialRows) -> np.ndarray:
        """Return the constant raw scores of least loss: float64[n_outputs]."""
        best = self.best_constants(rows.means)
        if best is None or rows.has_offset:
            best = rows.search(np.zeros(self.n_outputs) if best is None else best)
        return best

    def starts(self, rows: AllRows) -> np.ndarray | None:
        """Return the initial scores of all `parts` (float64[n_outputs]) if they are computed at once; else None."""
        return None

    def target_spread(self, mean: float, lowest: float, highest: float) -> float:
        """Return the largest distance of a target from the mean, given the smallest and the largest one."""
        return max(mean - lowest, highest - mean)

    def steepest(self, mean: float, lowest: float, highest: float) -> float:
        """Return about the largest gradient at the best constant, if it depends on the size of the targets; else 1."""
        if self.is_classification or len(self.target_columns) > 1 or self.n_outputs > 1:
            return 1.0
        with np.errstate(all="ignore"):
            at = np.nan_to_num(self.link(np.array([mean, mean])), posinf=0.0, neginf=0.0)
            return float(np.abs(self.gradient(np.array([lowest, highest]), at)).max())

    def for_classes(self, n_classes: int) -> Loss:
        """Return the loss for a target of so many classes.

        Raises
        ------
        DataError
            If the loss has one raw score per row and there are more than two classes.
        """
        if self.n_outputs == 1 and n_classes > 2:
            raise DataError(  # the first words are those of scikit-learn
                f"Only binary classification is supported by loss={self.name!r}, which is for two classes, but the target has "
                f"{n_classes}; log_loss takes any number"
            )
        return self

    def best_constant(self, mean: float) -> float | None:
        """Return the raw score that minimises the loss over all rows, from the weighted mean of the target.

        None when the mean does not determine it: then it is computed by a search.
        """
        return None

    def best_constants(self, means: np.ndarray) -> np.ndarray | None:
        """Return the constant raw scores of all outputs that minimize the loss: float64[n_outputs]; see `best_constant`.

        means : weighted means of `target_sums`.
        """
        best = self.best_constant(float(means[0]))
        return None if best is None else np.array([best], np.float64)

    def magnitude(self, mean: float, largest: float) -> float | None:
        """Return about how large a row's loss can be at the start of training; it decides the unit of exact loss sums.

        mean, largest : weighted mean of the target, and its largest distance from that. None when these do not determine it:
        then the largest loss at the best constant is computed.
        """
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return name and parameters, as stored in model files."""
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

    def log_losses(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        """Return the log loss of each row's probabilities, of losses for classes that have it among their `own_metrics`."""
        raise NotImplementedError

    def link(self, prediction: np.ndarray) -> np.ndarray:
        """Return the raw scores of predictions."""
        return prediction

    def inverse_link(self, raw: np.ndarray) -> np.ndarray:
        """Return the predictions of raw scores (the probability of the second class for two-class losses)."""
        return raw

    def point(self, raw: np.ndarray) -> np.ndarray:
        """Return what metrics compare with targets: by default the predictions, in the shape of the raw scores."""
        return self.inverse_link(raw)

    def finish(self, raw: np.ndarray) -> np.ndarray:
        """Return predicted numbers, float64[n] or [n, n_outputs], or the probabilities of all classes, float64[n, n_classes].

        raw : float64[n, n_outputs].
        """
        if self.n_outputs > 1:
            return self.inverse_link(raw.T).T
        found = self.inverse_link(raw[:, 0])
        if not self.is_classification:
            return found
        both = np.empty((len(raw), 2))  # column_stack takes longer for one row
        both[:, 0], both[:, 1] = 1.0 - found, found
        return both


#: Number of rows that are checked, and the share of them that must agree.
N_CHECKED = 200
_AGREEING_SHARE = 0.95
_PLAIN = (bool, int, float, str, type(None))

_KNOWN: dict[str, type[Loss]] = {}


@dataclass(frozen=True)
class CustomTerms(LossTerms):
    """The record of a loss whose functions are in NumPy: its methods are called for the rows."""

    loss: Loss

    def advance(self, rows: GradientPass) -> GradientStats:
        fields, values, loss_unit, _, first, last, _ = rows
        part = slice(first, last)
        raw, y, hessians = fields.raw[:, part], fields.targets(first, last), fields.hessian
        for scores, of_output, leaf in zip(raw, values, fields.leaf[:, part], strict=True):
            scores += of_output[leaf]
        with np.errstate(all="ignore"):
            scores = loss_scores(raw)
            value, gradient, hessian = (
                call_custom(self.loss, method, y, scores) for method in ("value", "gradient", "hessian")
            )
            if fields.weight is not None:
                weight = fields.weight[part]
                value = value * weight
                if fields.repeat_count is None:
                    gradient, hessian = gradient * weight, hessian * weight
            fields.gradient[:, part] = gradient
            if hessians is not None:
                hessians[:, part] = np.maximum(hessian, 0.0)
            in_units = np.nan_to_num(np.clip(value * loss_unit, -LARGEST, LARGEST))
        loss_sum = ExactSum.of(in_units, 1.0)
        max_gradient = _largest(fields.gradient[:, part])
        max_hessian = np.ones(len(raw)) if hessians is None else _largest(hessians[:, part])
        return GradientStats(max_gradient, max_hessian, float(loss_sum.coarse), loss_sum.fine)


def _largest(derivatives: np.ndarray) -> np.ndarray:
    """Return the largest magnitude of each output: float64[n_outputs]."""
    return np.abs(derivatives).max(axis=1, initial=0.0).astype(np.float64)


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


def call_custom(loss: Loss, what: str, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
    """Call a method of a custom loss for some rows: float64[n], derivatives in the shape of the raw scores.

    Raises
    ------
    ParameterError
        When the method returns another shape, or something else than numbers.
    """
    # The arrays are those of training: a method that writes into them would change the model.
    y, raw = y.view(), raw.view()
    y.flags.writeable = raw.flags.writeable = False
    result = getattr(loss, what)(y, raw)
    n = raw.shape[-1]
    shape = (n,) if what == "value" else raw.shape
    if np.shape(result) != shape:
        raise ParameterError(f"{what} of loss {loss.name!r} returned shape {np.shape(result)} for {n} rows, not {shape}")
    return _numbers(loss, what, result)


def _numbers(loss: Loss, what: str, result: Any) -> np.ndarray:
    """Return what a method of a custom loss has returned as float64[…]; ParameterError if it holds something else."""
    kind = np.asarray(result).dtype
    if kind.kind not in "biuf":
        raise ParameterError(f"{what} of loss {loss.name!r} returned values of type {kind}: an array of numbers is needed")
    return np.asarray(result, np.float64)


@np.errstate(all="ignore")
def check_derivatives(loss: Loss, y: np.ndarray) -> str | None:
    """Return what is wrong with a custom loss, tested on some targets of the training data; None when nothing is."""
    y = y[..., :N_CHECKED]
    rng, n, k = np.random.default_rng(0), int(y.shape[-1]), loss.n_outputs
    if k == 1:
        raw = rng.normal(size=n) * 2.0
        best = _numbers(loss, "link", loss.link(loss.target_location(y)))
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
    what = "" if len(raw) == 1 else f" of output {output}"

    def called(method: str, scores: np.ndarray) -> np.ndarray:
        moved = raw.copy()
        moved[output] = scores
        found = call_custom(loss, method, y, loss_scores(moved))
        return found if found.ndim == 1 else found[output]

    methods = [("gradient", "value")] + [("hessian", "gradient")] * loss.exact_hessian
    for derivative, function in methods:
        derivatives = called(derivative, of_output)
        agrees = np.zeros(len(of_output), bool)
        for step in (shorter, longer):
            high, low = of_output + step, of_output - step
            above, below = called(function, high), called(function, low)
            quotient = (above - below) / (high - low)
            noise = 1e-13 * np.maximum(np.abs(above), np.abs(below)) / step
            agrees |= np.abs(derivatives - quotient) <= 1e-4 * (np.abs(quotient) + np.median(np.abs(quotient))) + noise + 1e-9
        is_wrong = ~agrees & (shorter < 1e-3 * far)
        if is_wrong.sum() > (1 - _AGREEING_SHARE) * (agrees | is_wrong).sum():
            i = int(np.argmax(is_wrong))
            kind = np.asarray(getattr(loss, function)(y, loss_scores(raw.copy()))).dtype
            hint = "" if kind.kind != "f" or kind.itemsize >= 8 else f"; its {function} is {kind}: compute in float64"
            return (
                f"{derivative}{what} of loss {loss.name!r} is not the derivative of its {function} by the raw score: for "
                f"y={_shown(y, i)} and raw={_shown(loss_scores(raw), i)} it says {derivatives[i]:g}, the difference quotient "
                f"{quotient[i]:g}{hint}"
            )
    hessian = called("hessian", of_output)
    if (hessian < 0).any():
        i = int(np.argmin(hessian))
        return (
            f"hessian{what} of loss {loss.name!r} is {hessian[i]:g} for y={_shown(y, i)} and "
            f"raw={_shown(loss_scores(raw), i)}, which must not be below 0; a "
            "stand-in is allowed if the class says exact_hessian = False"
        )
    return None


def _shown(y: np.ndarray, i: int) -> str:
    return f"{y[i]:g}" if y.ndim == 1 else f"({', '.join(f'{value:g}' for value in y[:, i])})"
