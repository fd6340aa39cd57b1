"""What a loss is: four records, the record of its compiled function, and its functions in NumPy.

A loss L(y, F) compares a target y with raw scores F. No code asks which loss it is; each part of a fit asks one record:

* `Targets`: which targets the loss takes (`session.target`);
* `Start`: the first raw scores, and how large losses are then (`training.target_stats`);
* `Leaves`, one for each output: how leaf values follow (`training.leaf_values`);
* `Link`: what raw scores stand for (`model.outputs`, `metrics`).

Every field has a default, so a loss says only what differs. `BaseLoss.terms` returns the record of its compiled function
(`losses.gradient_pass`). A loss that the user defines is a `losses.custom.Loss`, of which `losses.custom.CustomLoss` makes a
loss with these records. So a new loss is one new module here, and its class in the registry.

**Shapes.** Raw scores, gradients, Hessians and linked predictions are float64[n_outputs, n], also of one output. Targets are
float64[n], of a loss of several target columns float64[n_columns, n].

Equation numbers in the losses' docstrings are those of J. Friedman, "Greedy function approximation: a gradient boosting
machine", Ann. Statist. 29(5), 2001.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dboost.display import number
from dboost.errors import DataError
from dboost.exact import ExactSum
from dboost.losses.terms import GroupTerms, KernelTerms, LossTerms

#: A function of arrays.
ArrayFunction = Callable[[np.ndarray], np.ndarray]


class PartOfRows(NamedTuple):
    """Some training rows with their raw scores."""

    target: np.ndarray  # float64[n], of a loss of several target columns float64[n_columns, n]
    raw: np.ndarray  # float64[n_outputs, n]
    weight: np.ndarray | None  # float64[n]; None for 1

    def of_output(self, output: int, column: int) -> PartOfRows:
        """Return the rows for the loss of one output alone, whose target is that column."""
        return PartOfRows(target_column(self.target, column), self.raw[output : output + 1], self.weight)


def target_column(target: np.ndarray, column: int) -> np.ndarray:
    """Return one column of targets (float64[n], or [n_columns, n]): float64[n]."""
    return target if target.ndim == 1 else target[column]


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
    means: np.ndarray  # weighted means of `Start.sums`
    has_offset: bool  # whether there are offsets that have an effect, see `Link.uses_offset`
    #: Given constants to begin at (float64[n_outputs]), returns those that minimize the loss if they are added to all offsets:
    #: by Newton's method, one output after the other.
    search: ArrayFunction


class RowStatistic:
    """What the gradients of a loss depend on beside their own row: a statistic of all training rows.

    It is computed after every change of the scores; the gradients are then computed again, see `BaseLoss.pass_terms`.
    """

    def of(self, rows: AllRows, before: Any = None) -> Any:
        """Return the statistic at the present scores. before : that of earlier scores, which may save time, or None."""
        raise NotImplementedError


class SumUnits(NamedTuple):
    """Units of exact sums."""

    target: float  # of weighted targets
    weight: float
    is_whole: bool  # whether all weights are integers, so that a row of weight n is added n times


@dataclass(frozen=True, kw_only=True)
class Targets:
    """Which targets a loss takes."""

    #: What the columns of the target are, for messages.
    columns: tuple[str, ...] = ("target",)
    #: The column of each output, if the outputs are independent (`BaseLoss.parts`).
    of_outputs: tuple[int, ...] = ()
    are_classes: bool = False
    #: The role that names the group of each row, if the loss of a row depends on the other rows of its group; else "". Such a
    #: loss has `Start.constants` and `Start.magnitude`, and the blocks of its compiled function are whole groups.
    groups: str = ""
    #: Valid targets, as text: "non-negative" (and not all zero), "strictly positive", or "" for any; with `invalid` the rule
    #: for messages.
    valid: str = ""
    #: Returns which targets are invalid (bool[n]), or None if all are valid. Default: those that are not `valid`.
    invalid: Callable[[np.ndarray], np.ndarray | None] | None = None
    #: Returns why the target of one row, which is invalid, is refused. Default: by the rule.
    reason: Callable[[np.ndarray], str] | None = None
    #: Returns one finite number for each target, about the best prediction. Default: the target.
    location: ArrayFunction | None = None

    @property
    def excludes_negative(self) -> bool:
        """Whether targets below 0 are invalid."""
        return self.valid in ("non-negative", "strictly positive")

    @property
    def rule(self) -> str:
        """What invalid targets are not, for messages."""
        if self.valid == "non-negative":
            return "non-negative y and sum(y) > 0"
        return f"{self.valid} y" if self.valid == "strictly positive" else self.valid

    def invalid_rows(self, y: np.ndarray) -> np.ndarray | None:
        """Return which targets are invalid: bool[n]; None if all are valid."""
        if self.invalid is not None:
            return self.invalid(y)
        return y < 0 if self.valid == "non-negative" else y <= 0 if self.valid else None

    def refusal(self, loss_name: str, y: np.ndarray) -> str:
        """Return why the target of one row (a number, or float64[n_columns]), which is invalid, is refused."""
        if self.reason is not None:
            return self.reason(y)
        return f"loss={loss_name!r} requires {self.rule}: the target is {', '.join(map(number, np.atleast_1d(y)))}"

    def locations(self, y: np.ndarray) -> np.ndarray:
        """Return one finite number for each target: float64[n]."""
        return y if self.location is None else self.location(y)

    def check_columns(self, loss_name: str, n_columns: int) -> None:
        """Raise a DataError if the loss does not take so many target columns."""
        wanted = len(self.columns)
        if n_columns == wanted:
            return
        if wanted == 1:
            raise DataError(
                f"the target has {n_columns} columns, but loss={loss_name!r} takes one: fit a model for each column, or make "
                "one column of them"
            )
        columns = f"{n_columns} column{'s' * (n_columns > 1)}"
        raise DataError(f"the target has {columns}, but loss={loss_name!r} takes {wanted}: {', '.join(self.columns)}")


@dataclass(frozen=True, kw_only=True)
class Start:
    """From what the first raw scores follow, and how large losses are then."""

    #: Returns the raw scores of least loss (float64[n_outputs]) from the weighted means of the `sums`, if these determine it.
    #: Default: they are found by a search.
    constants: ArrayFunction | None = None
    #: Returns the raw scores of least loss from passes over all rows: float64[n_outputs]. Default: `constants`, or a search.
    of_rows: Callable[[InitialRows], np.ndarray] | None = None
    #: Returns the weighted sums of which `constants` takes the means. Default: that of the targets.
    sums: Callable[[np.ndarray, np.ndarray | None, SumUnits], list[ExactSum]] | None = None
    #: Returns about how large a row's loss can be, which decides the unit of exact loss sums, from the weighted mean of the
    #: target and the largest distance from it. Default: the largest loss at the first scores is computed.
    magnitude: Callable[[float, float], float] | None = None
    #: The magnitude is at least this.
    least_magnitude: float = 1e-200
    #: The largest distance of a target from the mean. Default: it is computed.
    spread: float | None = None
    #: True when L(a y, a F) = a² L(y, F), so that training may use any unit of the target.
    scales: bool = False


@dataclass(frozen=True, kw_only=True)
class Leaves:
    """How the leaf values of one output follow."""

    #: "newton" steps, the "quantile" of the rows' residuals at `level`, or a "clipped" step from that quantile: the mean of
    #: the residuals around it, clipped at the `BaseLoss.statistic`. Where it is the quantile, the loss is linear on both sides
    #: of the target: a row has the gradient of the iteration before unless its score has passed the target.
    statistic: str = "newton"
    level: float = 0.5
    #: Largest change of a raw score by one leaf (after the learning rate). Where the raw score is a logarithm, a Newton step
    #: far from the minimum is meaningless: with a Hessian near zero it would be in the thousands.
    longest_step: float = math.inf
    #: Factor of Newton steps, for losses whose diagonal Hessian overstates the curvature.
    step_factor: float = 1.0
    #: Derivatives in kernels are those by the raw score in this unit; leaf values are steps times the unit.
    score_unit: float = 1.0
    #: True when d²L/dF² is 1 for every row, so that Hessian sums are counts (or sums of weights).
    constant_hessian: bool = False
    #: Whether predictions rise with the raw score, so that monotonic constraints have a meaning.
    is_monotonic: bool = True


@dataclass(frozen=True, kw_only=True)
class Link:
    """What raw scores stand for."""

    #: Raw scores of predictions, and predictions of raw scores (the probability of the second class for two-class losses).
    to_raw: ArrayFunction = lambda prediction: prediction
    to_prediction: ArrayFunction = lambda raw: raw
    #: Returns predicted numbers (float64[n] or [n, n_outputs]), or the probabilities of all classes (float64[n, n_classes]), of
    #: raw scores float64[n, n_outputs]. Default: by `to_prediction`.
    finish: ArrayFunction | None = None
    #: Form of `to_prediction`, for exports: "identity", "exp", "sigmoid" or "softmax" of the raw score times `factor`.
    form: str = "identity"
    factor: float = 1.0
    #: Names of several outputs; default: their numbers from 0.
    output_names: tuple[str, ...] = ()
    #: Whether the first of several raw scores is the one prediction of a row.
    predicts_first: bool = False
    #: Returns raw scores so that those of an output are its own; quantiles are sorted.
    ordered: ArrayFunction = lambda raw: raw
    #: The outputs that an offset is added to, and whether that changes the loss of a row.
    offset_outputs: slice = field(default_factory=lambda: slice(None))
    uses_offset: bool = True
    #: Whether raw scores are probabilities, to which no offset can be added.
    are_probabilities: bool = False
    #: Of two classes: the raw score at which they are equally probable.
    even_score: float = 0.0
    #: Names of metrics in `metrics.named` that apply to this loss, beside those of all losses of numbers or classes.
    metrics: tuple[str, ...] = ()
    #: Returns the log loss of each row's probabilities from targets and raw scores, if that is one of the `metrics`.
    log_losses: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None


class BaseLoss:
    """Base class of losses."""

    #: Name in files and in the `loss=` parameter.
    name: ClassVar[str] = ""
    #: The loss's parameters: keywords of `dboost.fit` and of its constructor.
    options: ClassVar[tuple[str, ...]] = ()
    #: Further arguments of its constructor, which the first iteration computes; stored in model files.
    learned: ClassVar[tuple[str, ...]] = ()
    targets: Targets = Targets()
    start: Start = Start()
    leaves: tuple[Leaves, ...] = (Leaves(),)  # of each output
    link: Link = Link()
    #: False when `hessian` is a substitute, because the second derivative is zero or not useful.
    exact_hessian: bool = True
    #: Whether Hessians are the influence of rows, by which `influence_trimming` leaves rows out.
    can_trim: bool = False
    #: Whether the raw scores are those of classes, of which each row has one: gradients are p - [class] with probabilities p,
    #: and second derivatives along a direction c are variances of c under p. Otherwise the scores of a row are independent.
    has_classes: ClassVar[bool] = False
    #: The losses of the outputs alone, if they are independent (`per_output.PerOutput`): this loss is their mean.
    parts: tuple[BaseLoss, ...] = ()
    #: What gradients need to know of all rows.
    statistic: RowStatistic | None = None
    #: The type of the record of the compiled function, if that has no parameters; see `terms`.
    record: ClassVar[type | None] = None

    def __repr__(self) -> str:
        settings = self.to_dict()
        shown = "".join(f", {name}={value!r}" for name, value in settings.items() if name != "name")
        return f"<Loss: {self.name}{shown}>"

    @property
    def n_outputs(self) -> int:
        """Number of raw scores per row."""
        return len(self.leaves)

    @property
    def public(self) -> Any:
        """What `Booster.loss` returns: the loss, or the object that the user has defined."""
        return self

    @property
    def constant_hessian(self) -> bool:
        """Whether the Hessians of all outputs are 1, see `Leaves.constant_hessian`."""
        return all(leaves.constant_hessian for leaves in self.leaves)

    # The loss of rows. y : targets, float64[n] or [n_columns, n]; raw : float64[n_outputs, n].

    def value(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        """Return the loss of each row: float64[n]."""
        raise NotImplementedError

    def gradient(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        """Return dL/dF: float64[n_outputs, n]."""
        raise NotImplementedError

    def hessian(self, y: np.ndarray, raw: np.ndarray) -> np.ndarray:
        """Return the second derivative by each raw score (1 with a `constant_hessian`): float64[n_outputs, n]."""
        if not self.constant_hessian:
            raise NotImplementedError
        return np.ones_like(raw)

    def slopes(self, output: int, y: np.ndarray, raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return first and second derivative by one output's raw score: float64[n]."""
        return self.gradient(y, raw)[output], self.hessian(y, raw)[output]

    def terms(self) -> Any:
        """Return the named tuple for which the loss overloads `gradient_pass.block_terms`, or with several outputs
        `output_terms`; with its parameters. None if the loss has functions in NumPy only. Default: a `record`."""
        if self.record is None:
            raise NotImplementedError
        return self.record()

    def pass_terms(self, statistic: Any = None) -> LossTerms:
        """Return the record for passes over rows. statistic : of the rows at their present scores."""
        return GroupTerms(self.terms()) if self.targets.groups else KernelTerms(self.terms())

    # What a loss learns from the rows, and other forms of it.

    def verify(self, rows: AllRows) -> None:
        """Raise a ParameterError if functions of the loss are wrong; of a loss that the user defines."""

    def started(self, baseline: np.ndarray) -> BaseLoss:
        """Return the loss with what it has `learned` from the initial raw scores (float64[n_outputs])."""
        return self

    def continued(self, stored: dict[str, Any]) -> BaseLoss:
        """Return the loss with what that of the model that is continued has learned. stored : its record."""
        return self

    def with_statistic(self, statistic: Any) -> BaseLoss:
        """Return the loss with that value of its `statistic`; the model has that of the first iteration."""
        return self

    def statistic_of(self, output: int, statistic: Any) -> Any:
        """Return the `statistic` of the loss of one output."""
        return statistic

    def in_unit(self, unit: float) -> BaseLoss:
        """Return the loss for targets and raw scores divided by `unit`; see `Start.scales`."""
        return self

    def with_parts(self, parts: Sequence[BaseLoss]) -> BaseLoss:
        """Return the loss with other `parts`."""
        raise NotImplementedError

    def for_classes(self, n_classes: int) -> BaseLoss:
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

    def comparable(self, losses: tuple[float, float], weight: float) -> tuple[float, float]:
        """Return the total losses of a model and of the best constant so that the model's is their share that is left.

        weight : total weight of the rows.
        """
        return losses

    # Predictions.

    def point(self, raw: np.ndarray) -> np.ndarray:
        """Return what metrics compare with targets: the predictions, float64[n] or with several for a row [n_outputs, n].

        raw : float64[n_outputs, n].
        """
        if self.link.predicts_first:
            return raw[0]
        prediction = self.link.to_prediction(raw)
        return prediction[0] if self.n_outputs == 1 else prediction

    def finish(self, raw: np.ndarray) -> np.ndarray:
        """Return predicted numbers, float64[n] or [n, n_outputs], or the probabilities of all classes, float64[n, n_classes].

        raw : float64[n, n_outputs].
        """
        if self.link.finish is not None:
            return self.link.finish(raw)
        prediction = self.link.to_prediction(raw.T)
        if self.n_outputs > 1:
            return prediction.T
        return both_classes(prediction[0]) if self.targets.are_classes else prediction[0]

    # Model files.

    def to_dict(self) -> dict[str, Any]:
        """Return name and parameters, as stored in model files."""
        return {"name": self.name}

    def is_stored_as(self, stored: dict[str, Any]) -> bool:
        """Return whether a model with that record was trained with this loss, apart from what it has learned."""
        parameters = {name: value for name, value in self.to_dict().items() if name not in self.learned}
        return stored == stored | parameters

    def as_parameter(self) -> Any:
        """Return the value of the parameter `loss` that stands for this loss."""
        return self.name


def both_classes(probability: np.ndarray) -> np.ndarray:
    """Return the probabilities of two classes, float64[n, 2], from those of the second one."""
    both = np.empty((len(probability), 2))  # column_stack takes longer for one row
    both[:, 0], both[:, 1] = 1.0 - probability, probability
    return both


def of_mean(constant: Callable[[float], float]) -> ArrayFunction:
    """Return `Start.constants` of one output from a function of the mean target."""
    return lambda means: np.array([constant(float(means[0]))], np.float64)
