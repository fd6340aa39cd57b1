"""`Outputs`: what the raw scores of a model stand for: names of outputs and columns, transforms, dtype of predictions.

A model has one raw score per row for numbers and for two classes, and K for K > 2 classes and for several targets. Raw scores
are always [n_rows, n_outputs] here. `Outputs` is that of a model which predicts a number, `ClassOutputs` that of a classifier,
`SeveralOutputs` that of a model with several targets, `NormalOutputs` that of one of normal distributions. Other code calls
their methods and does not ask which of them it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from dboost.errors import ParameterError
from dboost.schema import Level

if TYPE_CHECKING:
    from dboost.losses import BaseLoss, Loss


class OutputForm(NamedTuple):
    """How raw scores become an output of `Booster`."""

    finish: Callable[[np.ndarray], np.ndarray]  # from float64[n, n_outputs]
    columns: tuple[Level, ...] | None = None  # of frames; None for one column
    dtype: np.dtype = np.dtype(np.float64)


class IntervalBase(NamedTuple):
    """What the intervals of some rows follow from: float64[n] each."""

    low: np.ndarray  # widened downwards
    high: np.ndarray  # widened upwards
    unit: np.ndarray | float = 1.0  # of margins

    def scores(self, y: np.ndarray) -> np.ndarray:
        """Return how far targets are outside, in the unit: float64[n]."""
        return np.maximum(self.low - y, y - self.high) / self.unit


@dataclass(frozen=True, eq=False)
class Outputs:
    """The outputs of a model that predicts numbers."""

    #: Number of raw scores per row.
    n: int
    #: The record of the loss in the model, see `Ensemble.loss`.
    stored_loss: dict[str, Any]
    #: The user-defined loss that was given with the model, or several. Default: the loss that the record names.
    given_loss: Loss | Sequence[Loss] | None = None

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return type(self).__qualname__, self.n, self.stored_loss

    #: The raw scores that an offset is added to.
    offset_outputs: ClassVar[slice] = slice(None)

    @cached_property
    def loss(self) -> BaseLoss:
        """The loss; ParameterError if it is user-defined and not known in this process."""
        from dboost import losses  # imports compiled kernels, which names and raw scores do not need

        return losses.from_dict(self.stored_loss, self.given_loss)

    @property
    def kind(self) -> str:
        """What the model predicts, for titles."""
        return "regression"

    @property
    def names(self) -> list[Any]:
        """Names of the raw scores: the classes, of two classes the second one; None for numbers."""
        return [None] * self.n

    @property
    def linked_names(self) -> list[Any]:
        """Names of the columns of `linked`."""
        return self.names

    @property
    def labels(self) -> np.ndarray | None:
        """The classes in the dtype of the target, in the order of `probabilities`; None for numbers."""
        return None

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of probabilities in files and frames that require text."""
        return ()

    @property
    def column_labels(self) -> tuple[Level, ...]:
        """The same in frames that have labels of any type: the classes themselves."""
        return self.columns

    @property
    def prediction_columns(self) -> tuple[str, ...] | None:
        """Names of the columns of predictions in frames; None for one prediction per row."""
        return None

    @property
    def is_classification(self) -> bool:
        """Whether the model predicts classes or labels."""
        return self.labels is not None

    @property
    def axis(self) -> str:
        """What the outputs are, for the column of frames that has their names."""
        return "class"

    @property
    def dtype(self) -> np.dtype:
        """Dtype of predictions."""
        return np.dtype(np.float64)

    def require_classes(self) -> np.ndarray:
        """Return `labels`; raise a ParameterError for a model that predicts numbers."""
        raise ParameterError(f"there are no probabilities: the model predicts numbers (loss {self.stored_loss['name']!r})")

    def require_probabilities(self) -> None:
        """Raise a ParameterError for a model without probabilities."""
        self.require_classes()

    def form(self, output: str) -> OutputForm:
        """Return the form of "prediction", "probability", "raw_score" or "distribution".

        Raises
        ------
        ParameterError
            For another output; for probabilities of a model that predicts numbers, and distributions of one without.
        """
        if output == "raw_score":
            return OutputForm(scores, self.column_labels if self.n > 1 else None)
        if output == "prediction":
            return OutputForm(self.finish, self.prediction_columns, self.dtype)
        if output == "probability":
            self.require_probabilities()
            return OutputForm(self.probabilities, self.column_labels)
        if output == "distribution":
            return self.distribution()
        raise ParameterError(
            f"output={output!r} must be one of 'prediction', 'probability', 'raw_score', 'distribution', 'interval'"
        )

    def decision(self, costs: Any) -> OutputForm:
        """Return the form of the classes of lowest expected cost; `Booster.decide` documents `costs` and the errors."""
        from dboost.losses.classification import read_costs

        return OutputForm(partial(self._cheapest, read_costs(costs, self.require_classes())), None, self.dtype)

    def _cheapest(self, costs: np.ndarray, raw: np.ndarray) -> np.ndarray:
        from dboost.losses.classification import cheapest

        return self.require_classes()[cheapest(self.probabilities(raw), costs)]

    def linked(self, raw: np.ndarray) -> np.ndarray:
        """Return the inverse link of raw scores, in the same shape."""
        return self.loss.link.to_prediction(raw.T).T

    def finish(self, raw: np.ndarray) -> np.ndarray:
        """Return predictions: numbers or classes [n]."""
        return self.loss.finish(raw)

    def probabilities(self, raw: np.ndarray) -> np.ndarray:
        """Return the probabilities of the classes: float64[n, n_classes]; ParameterError for numbers."""
        return self.require_classes()

    def with_offset(self, raw: np.ndarray, offset: np.ndarray | None) -> np.ndarray:
        """Return raw scores with the offsets of their rows (float64[n]) added."""
        if offset is None:
            return raw
        self.check_offset()
        shifted = raw.copy()
        shifted[:, self.offset_outputs] += offset[:, None]
        return shifted

    def check_offset(self) -> None:
        """Raise a ParameterError if raw scores are probabilities, to which no offset can be added."""
        from dboost.losses.brier import HalfBrier

        if any(stored["name"] == HalfBrier.name for stored in self.stored_loss.get("losses", [self.stored_loss])):
            raise ParameterError(
                "offset is added to raw scores, and those of a forest of classes are probabilities: leave it out"
            )

    def distribution(self) -> OutputForm:
        """Return the form of the distributions of the rows' targets; ParameterError for a model without."""
        raise ParameterError(
            f"there are no distributions: the model was trained with loss={self.stored_loss['name']!r}, and those of "
            "loss='normal' predict them"
        )

    def means(self, raw: np.ndarray) -> np.ndarray:
        """Return what is averaged over models: predicted numbers [n], or the probabilities of classes."""
        return self.loss.finish(raw)

    def interval_of(self, raw: np.ndarray) -> IntervalBase:
        """Return what is widened to intervals."""
        return self.interval_of_means(self.interval_means(raw))

    def in_range(self, bounds: np.ndarray) -> np.ndarray:
        """Return the bounds of intervals, at least 0 where targets cannot be negative."""
        return np.maximum(bounds, 0.0) if self.loss.targets.excludes_negative else bounds

    def interval_means(self, raw: np.ndarray) -> np.ndarray:
        """Return what intervals follow from, and is averaged over models: float64[n], or [n, m]."""
        return self.finish(raw)

    def interval_of_means(self, means: np.ndarray) -> IntervalBase:
        """Return what is widened to intervals. means : `interval_means`, also averages over models."""
        return IntervalBase(means, means)

    def check_intervals(self) -> None:
        """Raise a ParameterError if the model predicts classes, or several numbers of which no interval is made."""
        if self.n > 1:
            raise ParameterError(f"there is no interval: the model predicts {self.n} numbers for each row")

    def number_of(self, name: Any) -> int:
        """Return the number of a raw score by its name, the last one for None; ParameterError if there is none."""
        return _number_of(name, self.names)

    def class_of(self, name: Any = None) -> tuple[int, Any]:
        """Return number and name of a class by its name, the last one for None; ParameterError if there is none."""
        self.require_classes()
        return 0, None

    def label(self, scale: str = "raw") -> str:
        """Return the label of an axis that shows raw scores or predictions. scale : "raw" or "prediction"."""
        is_raw = scale == "raw" and not np.array_equal(self.loss.link.to_prediction(np.array([[0.25, 2.0]])), [[0.25, 2.0]])
        return "raw score (logarithm of the prediction)" if is_raw else "prediction"


@dataclass(frozen=True, eq=False)
class ClassOutputs(Outputs):
    """The outputs of a classifier: one raw score for two classes, else one per class."""

    classes: tuple[Level, ...] = ()
    #: NumPy dtype of the target.
    classes_dtype: str | None = None

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return *super().__dask_tokenize__(), self.classes, self.classes_dtype

    @property
    def kind(self) -> str:
        return f"{len(self.classes)} classes"

    @property
    def names(self) -> list[Any]:
        return list(self.classes) if self.n > 1 else [self.classes[-1]]

    @cached_property
    def labels(self) -> np.ndarray:
        return np.array(self.classes, np.dtype(self.classes_dtype))

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(map(str, self.classes))

    @property
    def column_labels(self) -> tuple[Level, ...]:
        return self.classes

    @property
    def dtype(self) -> np.dtype:
        return self.labels.dtype

    def require_classes(self) -> np.ndarray:
        return self.labels

    def finish(self, raw: np.ndarray) -> np.ndarray:
        return self.labels[self.probabilities(raw).argmax(axis=1)]

    def probabilities(self, raw: np.ndarray) -> np.ndarray:
        return self.loss.finish(raw)

    def check_intervals(self) -> None:
        raise ParameterError(
            "there are no intervals: the model predicts classes, whose probabilities predict_proba returns; "
            "sklearn.calibration.CalibratedClassifierCV(DBoostClassifier()) calibrates probabilities"
        )

    def class_of(self, name: Any = None) -> tuple[int, Any]:
        k = _number_of(name, list(self.classes))
        return k, self.classes[k]

    def label(self, scale: str = "raw") -> str:
        second_text = "" if self.n > 1 else f" of {self.names[0]}"
        if scale == "prediction" or self.loss.link.are_probabilities:
            return f"probability{second_text}"
        return f"log odds{second_text}" if self.n == 1 and self.loss.link.factor == 1.0 else f"raw score{second_text}"


@dataclass(frozen=True, eq=False)
class SeveralOutputs(Outputs):
    """The outputs of a model with several targets: numbers, or the labels 0 and 1 where the loss is one of classes."""

    @property
    def kind(self) -> str:
        return f"{self.n} {'labels' if self.is_classification else 'outputs'}"

    @property
    def names(self) -> list[Any]:
        return list(self.columns)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        names = self.stored_loss.get("outputs")
        return tuple(map(str, range(self.n) if names is None else names))

    @property
    def prediction_columns(self) -> tuple[str, ...] | None:
        return self.columns

    @property
    def axis(self) -> str:
        return "output"

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.int64 if self.is_classification else np.float64)

    @property
    def is_classification(self) -> bool:
        """Whether every output is a label, 0 or 1."""
        return "losses" in self.stored_loss and all(part.targets.are_classes for part in self.loss.parts)

    def require_probabilities(self) -> None:
        if not self.is_classification:
            super().require_probabilities()

    def require_classes(self) -> np.ndarray:
        if self.is_classification:
            raise ParameterError(
                f"the model has {self.n} labels ({', '.join(self.columns)}), each of which is 0 or 1, and no classes that "
                "exclude each other: fit a model for one of them"
            )
        return super().require_classes()

    def finish(self, raw: np.ndarray) -> np.ndarray:
        scores = self.linked(raw)
        for k, part in enumerate(self.loss.parts):
            if part.targets.are_classes:
                scores[:, k] = raw[:, k] > part.link.even_score
        return np.ascontiguousarray(scores, self.dtype)

    def probabilities(self, raw: np.ndarray) -> np.ndarray:
        self.require_probabilities()
        return np.ascontiguousarray(np.clip(self.linked(raw), 0.0, 1.0))  # means of leaves have rounding errors

    def means(self, raw: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(self.linked(raw))

    def label(self, scale: str = "raw") -> str:
        return "prediction" if scale == "prediction" else "raw score"


@dataclass(frozen=True, eq=False)
class QuantileOutputs(SeveralOutputs):
    """The outputs of a model of several quantiles of one target: sorted predictions, see `losses.several_quantiles`."""

    @property
    def kind(self) -> str:
        return f"{self.n} quantiles"

    @property
    def axis(self) -> str:
        return "quantile"

    def interval_of_means(self, means: np.ndarray) -> IntervalBase:
        return IntervalBase(means[:, 0], means[:, -1])

    def check_intervals(self) -> None:
        pass


#: Names of the columns of distributions.
DISTRIBUTION_COLUMNS = ("loc", "scale")


@dataclass(frozen=True, eq=False)
class NormalOutputs(SeveralOutputs):
    """The outputs of a model of normal distributions: predictions are the means, see `losses.normal`."""

    offset_outputs: ClassVar[slice] = slice(0, 1)

    @property
    def kind(self) -> str:
        return "normal distributions"

    @cached_property
    def columns(self) -> tuple[str, ...]:
        return self.loss.link.output_names

    @property
    def linked_names(self) -> list[Any]:
        return list(DISTRIBUTION_COLUMNS)

    #: A row has one prediction.
    prediction_columns, finish, means = Outputs.prediction_columns, Outputs.finish, Outputs.means

    def distribution(self) -> OutputForm:
        return OutputForm(self._distributions, DISTRIBUTION_COLUMNS)

    def interval_means(self, raw: np.ndarray) -> np.ndarray:
        return self._distributions(raw)

    def interval_of_means(self, means: np.ndarray) -> IntervalBase:
        return IntervalBase(means[:, 0], means[:, 0], means[:, 1])

    def _distributions(self, raw: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(self.linked(raw))

    def check_intervals(self) -> None:
        pass


def _are_quantiles(stored_loss: dict[str, Any]) -> bool:
    """Return whether the record of a loss is that of `losses.Quantiles`."""
    losses = stored_loss.get("losses", ())
    levels = [loss.get("quantile") for loss in losses if loss["name"] == "quantile"]
    are_all = 0 < len(levels) == len(losses) and levels == sorted(set(levels))
    return are_all and stored_loss.get("targets") == ["target"] and stored_loss["outputs"] == [repr(level) for level in levels]


def outputs_of(n: int, stored_loss: dict[str, Any], classes: tuple[Level, ...] | None, classes_dtype: str | None) -> Outputs:
    """Return the outputs of a model; classes : None for a model that predicts numbers."""
    if classes is None:
        if n == 1:
            return Outputs(n, stored_loss)
        kind = NormalOutputs if stored_loss["name"] == "normal" else SeveralOutputs
        return (QuantileOutputs if _are_quantiles(stored_loss) else kind)(n, stored_loss)
    return ClassOutputs(n, stored_loss, None, classes, classes_dtype)


def scores(raw: np.ndarray) -> np.ndarray:
    """Return raw scores as users get them: [n] of a single output."""
    return raw[:, 0] if raw.shape[1] == 1 else raw


def _number_of(name: Any, names: list[Any]) -> int:
    if name is None:
        return len(names) - 1
    if name not in names:
        raise ParameterError(f"output={name!r} is none of {', '.join(map(repr, names))}")
    return names.index(name)
