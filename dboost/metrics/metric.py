"""Metrics on evaluation sets: the records, and metrics that users define.

A metric is a reduction of three functions: `chunk` turns the rows of a shard into a small statistic, `merge` adds two of them,
`finish` computes the metric. Merging dboost's own metrics (`named`) is exact and associative, so a metric, and with it early
stopping, is a function of the rows and not of their partitioning.

Users pass a `Metric`, which is such a reduction of targets, predictions and weights, or a function of all rows of an evaluation
set. For the latter the rows are brought together and sorted, so its value does not depend on the partitioning either.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial as bound
from typing import Any

import numpy as np

from dboost.errors import ParameterError
from dboost.exact import unit_for
from dboost.losses import BaseLoss
from dboost.losses.base import target_column
from dboost.tracebacks import short_tracebacks

#: Largest number of rows of a piece, see `ScoredRows.pieces`.
_PIECE_ROWS = 1 << 15


@dataclass(frozen=True)
class LossMagnitude:
    """Bounds of the summed values: the same for all parts of an evaluation set, so that their exact sums can be merged.

    loss, error : about the largest loss of a row, and the largest distance of its target from the prediction; weight : the
    largest weight; n_rows : of all parts; outputs : of each output of a loss with `BaseLoss.parts`.
    """

    loss: float
    error: float
    weight: float
    n_rows: int
    outputs: tuple[LossMagnitude, ...] = ()

    @classmethod
    def of(cls, magnitudes: Sequence[tuple[float, float]], weight: float, n_rows: int) -> LossMagnitude:
        """Return the bounds with one loss and error, or with several, one of each output."""
        outputs = tuple(cls(loss, error, weight, n_rows) for loss, error in magnitudes)
        if len(outputs) == 1:
            return outputs[0]
        return cls(max(output.loss for output in outputs), max(output.error for output in outputs), weight, n_rows, outputs)

    def unit(self, largest: float) -> float:
        """Return the unit of an exact sum of weighted numbers of about that size."""
        return unit_for(largest * self.weight, self.n_rows, spare_bits=10)

    @property
    def weight_unit(self) -> float:
        return unit_for(self.weight, self.n_rows)


@dataclass(frozen=True)
class ScoredRows:
    """Evaluation rows as a metric gets them.

    target, weight (or None) : float64[n], of several columns target is float64[n_columns, n]; raw :
    float64[n_outputs, n]; loss : the loss of the fit; block : the rows as a matrix, for metrics with `wants_block`.
    """

    target: np.ndarray
    raw: np.ndarray
    weight: np.ndarray | None
    loss: BaseLoss
    size: LossMagnitude
    block: np.ndarray | None = None

    def of_output(self, output: int) -> ScoredRows:
        """Return the rows as those of one output alone of a loss with `BaseLoss.parts`."""
        loss, size = self.loss, self.size
        target = target_column(self.target, loss.targets.of_outputs[output])
        size = size.outputs[output] if size.outputs else size
        raw = loss.link.ordered(self.raw)[output : output + 1]
        return ScoredRows(target, raw, self.weight, loss.parts[output], size, self.block)

    def pieces(self) -> Iterator[ScoredRows]:
        """Yield the rows in pieces of about the same number, whose intermediate values take little memory."""
        n = self.target.shape[-1]
        n_pieces = -(-n // _PIECE_ROWS)
        if n_pieces <= 1:
            yield self
            return
        for k in range(n_pieces):
            rows = slice(n * k // n_pieces, n * (k + 1) // n_pieces)
            weight = None if self.weight is None else self.weight[rows]
            yield ScoredRows(self.target[..., rows], self.raw[..., rows], weight, self.loss, self.size)

    def parts(self) -> list[ScoredRows]:
        """Return the rows for each of `BaseLoss.parts`, else the rows themselves."""
        return list(map(self.of_output, range(len(self.loss.parts)))) or [self]


@dataclass(frozen=True)
class MetricReduction:
    """A named metric. `greater_is_better` decides what early stopping counts as an improvement; None if the user has not said.

    spec : by which a worker finds the same metric (`named.find_metrics`); default: the name. Workers do not need the function
        of a metric of all rows (see `on_workers`).
    wants_block : whether the metric needs `ScoredRows.block`.
    wants_rows : whether `chunk` returns the rows themselves, which `finish` needs in one process.
    """

    name: str
    greater_is_better: bool | None
    chunk: Callable[[ScoredRows], Any]
    merge: Callable[[Any, Any], Any]
    finish: Callable[[Any], float]
    wants_block: bool = False
    wants_rows: bool = False
    spec: Any = None
    #: Of a mean over several outputs: name and metric of each output; the statistic is a list of their statistics.
    outputs: tuple[tuple[str, MetricReduction], ...] = ()

    def columns(self, eval_set: str) -> list[str]:
        """Return the columns of the history that `values` returns."""
        column = f"{eval_set}_{self.name}"
        return [column, *(f"{column} of {name}" for name, _ in self.outputs)]

    def values(self, eval_set: str, statistic: Any) -> dict[str, float]:
        """Return the metric of an evaluation set, and its values for single outputs, by column of the history."""
        values = [self.finish(statistic)]
        if self.outputs:
            values += [
                metric.finish(output_statistic) for (_, metric), output_statistic in zip(self.outputs, statistic, strict=True)
            ]
        return dict(zip(self.columns(eval_set), values, strict=True))

    @property
    def on_workers(self) -> Any:
        """By which workers find the metric; of a function of all rows the metric without it, which returns the rows."""
        return replace(self, finish=_finish_elsewhere, spec=None) if self.wants_rows else self.spec

    @property
    def larger_is_better(self) -> bool:
        """Return the direction of improvement; raise ParameterError if it is not known."""
        if self.greater_is_better is None:
            function = self.name if self.name.isidentifier() and self.name != "lambda" else '"name", function'
            raise ParameterError(
                f"eval_metric {self.name!r} is a function, and whether larger values are better is not known: give "
                f"dboost.metrics.Metric({function}, greater_is_better=True), or False"
            )
        return self.greater_is_better


@short_tracebacks
@dataclass(frozen=True)
class Metric:
    """A metric of your own: a function of all rows, or one that is merged over partitions and workers.

    Parameters
    ----------
    name : str or callable
        Its column of `Booster.history` is ``<evaluation set>_<name>``. A function stands for its name and itself:
        ``Metric(f)`` is ``Metric("f", f)``.
    partial : callable (y, prediction, weight) -> statistic
        The statistic of some rows; without `combine` and `finish` the metric of all rows, in the order of target, prediction
        and weight. y : float64[n], the targets, or the indices of the classes in `Booster.classes_`; prediction : float64[n],
        or for K > 2 classes float64[n, K]: numbers, or probabilities (of the second class if there are two); weight :
        float64[n] or None. A function of all rows may also take the weights as `sample_weight`, as those of sklearn.metrics
        do, or take none, for evaluation sets without weights.
    combine : callable (statistic, statistic) -> statistic, optional
        The statistic of both groups of rows. If it rounds, the metric may depend on the partitioning in its last digits.
    finish : callable (statistic) -> float, optional
        The metric of all rows.
    greater_is_better : bool, optional
        What early stopping counts as an improvement. Default: False; of a function of all rows what its attribute of this name
        says, or its own name if it ends as those of scikit-learn (``_score``, ``_error``, ``_loss``, ``_deviance``), else it
        is an error to ask for it.

    Raises
    ------
    ParameterError
        When the name is no non-empty text, or one of the functions cannot be called.

    Examples
    --------
    >>> import numpy as np
    >>> from dboost.metrics import Metric
    >>> def gini(y, prediction, weight):
    ...     return 2.0 * roc_auc_score(y, prediction, sample_weight=weight) - 1.0
    >>> dboost.fit(table, "y", eval_set=test, eval_metric=Metric(gini, greater_is_better=True))      # doctest: +SKIP
    >>> largest_error = Metric("largest_error", lambda y, p, w: np.abs(y - p).max(), max, float)
    >>> dboost.fit(table, "y", eval_set=test, eval_metric=largest_error)      # doctest: +SKIP
    """

    name: str | Callable[..., Any]
    partial: Callable[..., Any] | None = None
    combine: Callable[[Any, Any], Any] | None = None
    finish: Callable[[Any], float] | None = None
    greater_is_better: bool | None = None

    def __post_init__(self) -> None:
        if callable(self.name) and not isinstance(self.name, type) and self.partial is None:
            object.__setattr__(self, "partial", self.name)
            object.__setattr__(self, "name", _name_of(self.name))
        if not isinstance(self.name, str) or not self.name:
            raise ParameterError(f"a metric's name must be a text, not {self.name!r}")
        is_merged = self.combine is not None or self.finish is not None
        for role in ("partial", "combine", "finish") if is_merged else ("partial",):
            if not callable(getattr(self, role)):
                raise ParameterError(f"metric {self.name!r}: {role} must be a function, not {getattr(self, role)!r:.60}")

    def reduction(self) -> MetricReduction:
        """Return the metric as evaluation sets use it."""
        partial, combine, finish, name = self.partial, self.combine, self.finish, str(self.name)
        if partial is None or combine is None or finish is None:
            return of_function(partial, name, self.greater_is_better)

        def chunk(rows: ScoredRows) -> Any:
            return partial(*_for_users(rows), rows.weight)

        return MetricReduction(
            name, bool(self.greater_is_better), chunk, combine, lambda total: _number(name, finish(total)), spec=self
        )


def of_function(function: Any, name: str | None = None, greater_is_better: bool | None = None) -> MetricReduction:
    """Return the metric that a function computes of all rows of an evaluation set, see `Metric`.

    It is called with the rows in the order of target, prediction and weight.
    """
    name = _name_of(function) if name is None else name
    call = function if isinstance(function, type) else _call_of(name, function)  # a class is refused by `find_metrics`

    def finish(columns: tuple[np.ndarray, ...]) -> float:
        order = np.lexsort(np.column_stack(columns).T[::-1])
        y, prediction, *weight = (column[order] for column in columns)
        return _number(name, call(y, prediction, weight[0] if weight else None))

    if greater_is_better is None:
        greater_is_better = getattr(function, "greater_is_better", None)
    if greater_is_better is None:
        ends = _name_of(function).endswith
        greater_is_better = True if ends("_score") else False if ends(("_error", "_loss", "_deviance")) else None
    greater = None if greater_is_better is None else bool(greater_is_better)
    return MetricReduction(name, greater, _rows_chunk, _merge_rows, finish, wants_rows=True, spec=function)


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__)).strip("<>")


def _rows_chunk(rows: ScoredRows) -> tuple[np.ndarray, ...]:
    columns = _for_users(rows)
    return columns if rows.weight is None else (*columns, rows.weight)


def _merge_rows(a: tuple[np.ndarray, ...], b: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    if len(a) != len(b):  # the rows of one part have no weights, which are 1
        a, b = (part if len(part) == 3 else (*part, np.ones(len(part[0]))) for part in (a, b))
    return tuple(np.concatenate(pair) for pair in zip(a, b, strict=True))


def _finish_elsewhere(_: Any) -> float:
    raise TypeError("the function of all rows is called in the client")


def _call_of(name: str, function: Any) -> Callable[[np.ndarray, np.ndarray, np.ndarray | None], Any]:
    """Return how a function is called with target, prediction and weight.

    Raises
    ------
    ParameterError
        If it takes other arguments.
    """
    if hasattr(function, "_score_func"):
        raise ParameterError(
            f"eval_metric {name!r} is a scorer of scikit-learn, which calls an estimator: give the name of a metric, a "
            "function of sklearn.metrics, or a function of y, prediction and weight"
        )
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function without a signature, of an extension
        return function
    if "sample_weight" in signature.parameters:
        return bound(_call_with_keyword, name, function)
    if _binds(signature, 3):
        return function
    if _binds(signature, 2):
        return bound(_call_without_weight, name, function)
    raise ParameterError(
        f"eval_metric {name!r} does not take the arguments of a metric, which is\n"
        "    def my_score(y, prediction, weight):  # arrays of all rows; weight is None without weights\n"
        "        return ..."
    )


def _binds(signature: inspect.Signature, n: int) -> bool:
    """Return whether a function can be called with so many positional arguments."""
    try:
        signature.bind(*[None] * n)
    except TypeError:
        return False
    return True


def _call_with_keyword(name: str, function: Any, y: np.ndarray, prediction: np.ndarray, weight: np.ndarray | None) -> Any:
    """Call a function as those of sklearn.metrics."""
    try:
        return function(y, prediction, sample_weight=weight)
    except ValueError as error:
        if not str(getattr(function, "__module__", "")).startswith("sklearn."):
            raise
        classes = "prediction > 0.5" if prediction.ndim == 1 else "prediction.argmax(axis=1)"
        raise ParameterError(
            f"eval_metric {name!r} refuses the predictions ({error}). Of classes they are probabilities; for a metric of the "
            f"classes themselves give\n"
            f"    def {name if name.isidentifier() else 'my_score'}(y, prediction, weight):\n"
            f"        return sklearn.metrics.{_name_of(function)}(y, {classes}, sample_weight=weight)"
        ) from None


def _call_without_weight(name: str, function: Any, y: np.ndarray, prediction: np.ndarray, weight: np.ndarray | None) -> Any:
    if weight is not None:
        raise ParameterError(
            f"eval_metric {name!r} takes no weights, and the evaluation set has some: give it a third argument, weight"
        )
    return function(y, prediction)


def _for_users(rows: ScoredRows) -> tuple[np.ndarray, np.ndarray]:
    """Return targets and predictions as functions of users get them: [n], or [n, n_outputs]."""
    return rows.target.T, prediction_of(rows).T


def prediction_of(rows: ScoredRows) -> np.ndarray:
    """Return the predicted numbers or probabilities of the rows, see `BaseLoss.point`."""
    return rows.loss.point(rows.raw)


def _number(name: str, value: Any) -> float:
    """Return what a user's metric returned as a number.

    Raises
    ------
    ParameterError
        If it is no number, naming the metric.
    """
    try:
        return float(value)
    except (TypeError, ValueError):
        alone = "; return the number alone" if isinstance(value, tuple) else ""
        raise ParameterError(f"eval_metric {name!r} returned {value!r:.60}, which is not a number{alone}") from None
