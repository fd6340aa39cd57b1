"""`Booster`: a trained model as users see it, and the functions that make one from a file or from another library.

A `Booster` wraps an `Ensemble`, which is plain data. Its methods predict, save, interpret, plot, export and derive other
models; the code of each lies in the package that the method calls. Output has the kind of the input: arrays for arrays,
frames with the same index for frames, lazy Dask collections for lazy ones. A Booster is immutable: it can be pickled, sent to
workers and used by several threads at once.
"""

from __future__ import annotations

import itertools
import operator
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import cached_property, partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from dboost._lazy_import import late, pd
from dboost.argument_types import Client, ColumnLike, Predictions, RowFilterLike, TableLike, TargetLike
from dboost.data import predict_through
from dboost.data.kinds.predictor import FeatureBlocks
from dboost.data.kinds.table_kinds import is_dask, is_path, predictions_like
from dboost.data.output.predict_io import filtered, names_of_rows, offset_of_rows, offsets_of
from dboost.dataset import Dataset
from dboost.display import as_read
from dboost.errors import InputTypeError, ParameterError, warn
from dboost.files.atomic_write import write_whole
from dboost.files.filesystem import without_query
from dboost.files.path_text import path_text
from dboost.input_data import input_of, is_dataset
from dboost.kernels.threads import available_threads
from dboost.losses import BaseLoss, Loss
from dboost.model import model_file
from dboost.model.ensemble import Ensemble, FlatEnsemble, drop_source, to_frame, truncate
from dboost.model.margins import COLUMNS, Calibration, LevelColumn
from dboost.model.outputs import IntervalBase, OutputForm, Outputs
from dboost.model.row_predictor import RowPredictor
from dboost.params import (
    Number,
    Parameters,
    accepts_names_of_intervals,
    accepts_names_of_predictions,
    accepts_names_of_trees,
    serves_peer_names,
)
from dboost.params.peer_names import AnswersGuesses, refused_attribute_of_model, unknown_attribute
from dboost.schema import Feature, Level
from dboost.session.target import Target, check_order_of_targets, encode_column
from dboost.session.warm_start import checked_source_name
from dboost.tracebacks import short_traceback, short_tracebacks
from dboost.training.fit import FitResult

if TYPE_CHECKING:
    import onnx
    import treelite

    from dboost.inspection import calibration, dependence, drift, importance, row_functions, shapley
    from dboost.inspection.cross_conformal import Selection
    from dboost.inspection.plots import attributions, effects, performance, tree_diagram
    from dboost.inspection.report import page
    from dboost.interop import export, to_onnx, to_treelite, to_xgboost
    from dboost.interop import from_lightgbm as lightgbm_import
    from dboost.interop import from_xgboost as xgboost_import
else:  # imported at the first access: training and predicting need none of them
    calibration, dependence, drift, importance, row_functions, shapley = late(
        "dboost.inspection", "calibration dependence drift importance row_functions shapley"
    )
    attributions, effects, performance, tree_diagram = late(
        "dboost.inspection.plots", "attributions effects performance tree_diagram"
    )
    (page,) = late("dboost.inspection.report", "page")
    export, to_onnx, to_treelite, to_xgboost = late("dboost.interop", "export to_onnx to_treelite to_xgboost")
    lightgbm_import, xgboost_import = late("dboost.interop", "from_lightgbm from_xgboost")

#: The names of the parameters of learning.
_LEARNING = frozenset(field.name for field in fields(Parameters))

Range = tuple[int, int]
Function = TypeVar("Function", bound=Callable[..., Any])


def _of_an_ensemble(init: Function) -> Function:
    """Decorate the constructor: raise an InputTypeError for what the models of other libraries are made of."""

    @wraps(init)
    def checked(self: Booster, *arguments: Any, **keywords: Any) -> None:
        if keywords or len(arguments) != 1 or not isinstance(arguments[0], Ensemble):
            raise InputTypeError(
                "a Booster is not made by its class: call dboost.load(path) or dboost.fit(data, target), which return one"
            )
        init(self, *arguments)

    return checked  # type: ignore[return-value]


@short_tracebacks
@serves_peer_names
class Booster(metaclass=AnswersGuesses):
    """A trained model. `dboost.fit` and `dboost.load` return one.

    Parameters
    ----------
    ensemble : Ensemble
        Trees, baseline, features and loss.

    Attributes
    ----------
    ensemble : Ensemble
    history : DataFrame
        ``iteration`` (from 1, including those that early stopping dropped), ``train_loss`` and ``<eval set>_<metric>``. The
        loss squared_error is half the mean squared error; ``train_rmse`` and ``<eval set>_rmse`` are the roots of the mean
        squared errors. In the process of the fit also ``seconds``, ``rows_kept`` and ``bytes_read``; on a cluster ``workers``,
        the number of workers that hold rows; with arcbites ``bite`` and ``visit``, where iterations that were rolled back are
        followed by others with the same numbers. ``history.attrs["ended_by"]`` says why the fit ended, and
        ``history.attrs["lost_workers"]`` has, if workers with rows were lost during the fit, a dict for each: ``worker``, its
        address, ``iteration``, after which it was lost (None while data were loaded), and the ``partitions`` and ``rows`` that
        other workers read again (None for rows that the lost worker was still reading). A continued model has the iterations of
        all fits, NaN where a column was not recorded: the file of a model has only its metrics.
    timings : dict of str to float
        Seconds of the fit by phase; empty for a loaded model.

    Examples
    --------
    >>> booster = dboost.fit(frame, "target")                       # doctest: +SKIP
    >>> booster.predict(new_rows)                                   # doctest: +SKIP
    >>> booster.importance()                                        # doctest: +SKIP
    >>> booster.save("model.json")                                  # doctest: +SKIP
    """

    @_of_an_ensemble
    def __init__(self, ensemble: Ensemble) -> None:
        self.ensemble = ensemble
        self._record()
        self._trained_on: Callable[[], Any] = _nothing

    def _record(
        self,
        history: list[dict[str, Any]] | None = None,
        timings: dict[str, float] | None = None,
        loss: Loss | Sequence[Loss] | None = None,
        notes: dict[str, Any] | None = None,
    ) -> Self:
        """Set what the process of the fit knows beside the model (see `booster_with`), and return the model."""
        self._history = history
        self._notes = dict(notes or {})
        self._custom_loss = loss
        self.timings = dict(timings or {})
        return self

    # Attributes.

    @cached_property
    def history(self) -> pd.DataFrame:
        """What the fit recorded, or the metrics in the ensemble, one row per iteration, in the same order in both. The roots of
        mean squared errors follow.
        """
        records = self._records
        names = dict.fromkeys(name for record in reversed(records) for name in record)  # those of the last fit first
        frame = pd.DataFrame(records, columns=list(names)) if names else pd.DataFrame({"iteration": np.empty(0, np.int64)})
        frame.attrs |= self._notes
        for column in [*frame.columns]:
            name, values = as_read(column, frame[column], str(self.ensemble.loss["name"]))
            if name not in frame:
                frame[name] = values
        return frame

    @property
    def _records(self) -> list[dict[str, Any]]:
        """The history as it was recorded; this needs no pandas."""
        if self._history is None:
            names, values = ["iteration", *self.ensemble.metrics], self.ensemble.metrics.values()
            return [dict(zip(names, row, strict=True)) for row in zip(itertools.count(1), *values)] if values else []
        return self._history

    def history_with(self, later: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the history of a fit that continues this model: that of the model's iterations, and then the fit's own.

        Parameters
        ----------
        later : list of dict
            What the fit recorded.
        """
        if self.ensemble.search is not None:
            return later
        return [*(record for record in self._records if record["iteration"] <= self.n_iter_), *later]

    @property
    def features(self) -> tuple[Feature, ...]:
        """Names and kinds of the features, with the categories of categorical ones."""
        return self.ensemble.features

    @property
    def feature_names_in_(self) -> np.ndarray:
        """Names of the features, as objects (f0, f1, … for a model trained on an array)."""
        return np.array([feature.name for feature in self.ensemble.features], object)

    @property
    def n_features_in_(self) -> int:
        """Number of features."""
        return len(self.ensemble.features)

    @property
    def target_name(self) -> str | None:
        """Name of the column that the model was trained to predict; None if the fit was given values, or several columns."""
        return self.ensemble.target_name

    @property
    def classes_(self) -> np.ndarray | None:
        """Classes in the order of the columns of `predict_proba`, in the target's dtype; None for regression."""
        return self.outputs.labels

    @property
    def n_iter_(self) -> int:
        """Number of iterations in the model."""
        return self.ensemble.n_iterations

    @property
    def feature_importances_(self) -> np.ndarray:
        """Share of each feature in the reduction of the loss by all splits, float64[n_features]."""
        gain = self.importance("gain")
        shares = np.nan_to_num(gain[[feature.name for feature in self.features]].to_numpy(np.float64))
        return shares / (shares.sum() or 1.0)

    @property
    def best_iteration(self) -> int | None:
        """Number of iterations that early stopping kept; None without early stopping.

        If a search found the number of iterations (``max_iter="auto"``, ``refit=True``), this is its best iteration, as
        `history` has it; the model has `n_iter_`.
        """
        return self.ensemble.best_iteration

    @property
    def sources(self) -> tuple[dict[str, Any], ...]:
        """One record per fit, in the order of their trees.

        Each has ``label`` (the fit's `source_name`), ``rows``, ``first_iteration`` and ``last_iteration`` (from 1, both
        included; a source without iterations has a last one below the first), ``parameters``, and ``data_digest`` of schema and
        counts. Fits with an offset also have ``offset``: the name of its column, or True if values were given. Fits that
        continued a model also have ``unexplained_loss`` (the model's loss on the new rows divided by that of
        the best constant; None where the constant has no loss) and ``steps``, the parameters of the new trees after shrinkage.
        If learning rates differ (`learning_rate` as a schedule, or set by a callback), ``learning_rates`` has that of each
        iteration. ``search`` describes the fit with held-out rows that has found the number of iterations, if one has: the
        ``iterations`` that it kept, its ``learning_rate`` and ``rows``, and the ``train_loss`` of this model.
        """
        return tuple({name: value for name, value in source.items() if name != "summary"} for source in self.ensemble.sources)

    @property
    def loss(self) -> BaseLoss | Loss:
        """The loss that the model was trained with.

        Raises
        ------
        ParameterError
            For a user-defined loss that is not registered in this process; see `dboost.losses.register`.
        """
        return self.outputs.loss.public

    @cached_property
    def outputs(self) -> Outputs:
        """What the raw scores stand for, with names and transforms of the outputs."""
        return replace(self.ensemble.outputs, given_loss=self._custom_loss)

    @property
    def custom_loss(self) -> Loss | Sequence[Loss] | None:
        """The user-defined loss that was given with the model, several, or None."""
        return self._custom_loss

    @cached_property
    def sha256(self) -> str:
        """Digest of the model's content in hexadecimal, equal to the one in its file."""
        return model_file.digest(self.ensemble)

    def to_frame(self) -> pd.DataFrame:
        """Return the trees as a table with one row per node; see `dboost.model.ensemble.to_frame` for the columns."""
        return to_frame(self.ensemble)

    # Predictions.

    @accepts_names_of_predictions
    def predict(
        self,
        X: TableLike,
        raw_score: bool = False,
        iteration_range: Range | None = None,
        n_threads: int | None = None,
        *,
        offset: ColumnLike | None = None,
        filter: RowFilterLike | None = None,
    ) -> Predictions:
        """Predict a number or a class for each row.

        Parameters
        ----------
        X : pandas or polars frame, pyarrow Table, array, dask DataFrame or Array, or path
            Frames are read by column name and may have more columns; arrays must have as many as the training data.
        raw_score : bool, default False
            Return the sum of the trees, before the loss's inverse link; with K classes, one column per class.
        iteration_range : (first, last), optional
            Use only these iterations, counted from 0, without the last one. Default: all.
        n_threads : int, optional
            Default: all processors for data in memory, one per partition for Dask.
        offset : str, or one number per row, optional
            Where raw scores start, as in `dboost.fit` (log exposure, for example); added to the sum of the trees. The name of a
            column, or for data in memory the values. Default: the column that the model was trained with, if it was given by
            its name. If the rows do not have it, they start at 0, with a warning; with False they do so without one. All
            functions that score rows do the same.
        filter : str, list of tuples, or expression of pyarrow or polars, optional
            Rows to predict, as in `dboost.fit`; there are no predictions of the others. Default: all rows.

        Returns
        -------
        Array, Series or dask collection [n_rows], or [n_rows, n_classes] of raw scores
            float64, or the dtype of the classes. Of two equally probable classes the first one. For a `RecordBatchReader` a
            reader of predictions.

        Raises
        ------
        DataError
            Naming the missing or unreadable column, or both numbers of columns.
        ParameterError
            For a range outside the model's iterations.

        Examples
        --------
        >>> booster.predict(frame)                                  # doctest: +SKIP
        >>> booster.predict("rows/*.parquet").compute()             # doctest: +SKIP
        """
        X = X if filter is None else filtered(X, filter, self.features)
        return self._through(X, self._form(raw_score), iteration_range, n_threads, offset)

    @accepts_names_of_predictions
    def predict_proba(
        self,
        X: TableLike,
        iteration_range: Range | None = None,
        n_threads: int | None = None,
        *,
        offset: ColumnLike | None = None,
        filter: RowFilterLike | None = None,
    ) -> Predictions:
        """Predict the probabilities of the classes, in the order of `classes_`; parameters and errors as of `predict`.

        Returns
        -------
        Array, DataFrame or dask collection [n_rows, n_classes]
            The columns of frames are labelled by the classes: that of the class 1 is ``probabilities[1]``. Where names are text
            (polars, Arrow, files), they are the text of the classes.

        Raises
        ------
        ParameterError
            For a regression model.
        """
        X = X if filter is None else filtered(X, filter, self.features)
        return self._through(X, self.outputs.form("probability"), iteration_range, n_threads, offset)

    @accepts_names_of_predictions
    def predict_distribution(
        self,
        X: TableLike,
        iteration_range: Range | None = None,
        n_threads: int | None = None,
        *,
        offset: ColumnLike | None = None,
        filter: RowFilterLike | None = None,
    ) -> Predictions:
        """Predict the normal distribution of each row's target, of a model of ``loss="normal"``.

        Parameters and errors are those of `predict`.

        Returns
        -------
        Array, DataFrame or dask collection [n_rows, 2]
            The kind of X, with the columns ``loc``, the mean, which `predict` returns, and ``scale``, the standard deviation.

        Raises
        ------
        ParameterError
            For a model of another loss.

        Examples
        --------
        >>> booster = dboost.fit(frame, "price", loss="normal")     # doctest: +SKIP
        >>> booster.predict_distribution(frame)["scale"]            # doctest: +SKIP
        """
        form = self.outputs.distribution()
        X = X if filter is None else filtered(X, filter, self.features)
        return self._through(X, form, iteration_range, n_threads, offset)

    def predictor(self, output: str = "prediction", iteration_range: Range | None = None) -> RowPredictor:
        """Return a function that predicts single rows, prepared for services: it takes some microseconds for each.

        Parameters
        ----------
        output : {"prediction", "probability", "raw_score", "distribution", "interval"}, default "prediction"
            What it returns: that of `predict`, `predict_proba`, ``predict(raw_score=True)``, `predict_distribution` or
            `predict_interval`.
        iteration_range : (first, last), optional
            As in `predict`; not for intervals.

        Returns
        -------
        Callable ``predictor(row, *, offset=None)``
            `row` is one row, or a few as an array of two dimensions: numbers as a NumPy array in the order of
            `feature_names_in_` (fastest, if no feature is categorical); a list or tuple in that order; or a mapping by name,
            which may have more entries. It returns what the method returns for the same rows, to the last bit: for one row a
            scalar, or an array of the classes' scores or probabilities, of loc and scale, or of the bounds. `offset` is a
            number, or one for each row; default: as in `predict`, from a mapping. Several threads may call it at once. It can
            be pickled.

        Raises
        ------
        ParameterError
            For another output, for probabilities of a regression model, or for a range outside the model's iterations; for
            intervals of a model that has not been calibrated, or whose margins depend on a column.

        Examples
        --------
        >>> predictor = booster.predictor()                         # doctest: +SKIP
        >>> predictor(np.array([0.5, 2.0, np.nan]))                 # doctest: +SKIP
        >>> predictor({"age": 41, "town": "Gent"})                  # doctest: +SKIP
        """
        if output == "interval":
            form = self._interval_form(iteration_range)
        else:
            form = self.outputs.form(output)
        iterations = self._iterations(iteration_range)
        predict = partial(self._predict_rows, form, iterations)
        return RowPredictor(self.ensemble, iterations, form.finish, predict, (_predictor_of, (self, output, iteration_range)))

    def calibrate(
        self,
        data: TableLike,
        target: TargetLike | None = None,
        *,
        coverage: float = 0.9,
        by: Any = None,
        sample_weight: ColumnLike | None = None,
        offset: ColumnLike | None = None,
        filter: RowFilterLike | None = None,
        client: Client | None = None,
        n_threads: int | None = None,
    ) -> Self:
        """Set the margin for `predict_interval` by rows that the model has not been trained on, and return the model.

        The margin is the k-th smallest of the n rows' distances between target and prediction, k = ⌈(n + 1) · coverage⌉ (split
        conformal prediction). So the interval of a new row of the same population contains its target with a probability of at
        least the coverage. The margin is the same for any partitioning.

        Parameters
        ----------
        data, target, sample_weight, offset
            As in `dboost.fit`, with the model's columns. Default of the target: the column of this name that the model was
            trained on (`target_name`). A `dboost.Dataset` has its own target, weights and offsets;
            the thresholds of the model must be edges of its bins.
        coverage : float, default 0.9
            Between 0 and 1, both excluded.
        by : str, optional
            A column, a feature or not, each value of which gets a margin of its own from its rows (Mondrian conformal
            prediction). Rows to predict must have it; a value that is missing, or that had too few rows, has the margin of all
            rows. Not for a `Dataset`, which has no raw values.
        filter : str, list of tuples, or expression of pyarrow or polars, optional
            Rows to use, as in `dboost.fit`. The target and the other roles must be columns then. Default: all rows.
        client : distributed.Client, optional
            For Dask collections and paths, whose scores its workers keep (8 bytes per row, 16 with `by`). Default: the current
            client if there is one, else this process.
        n_threads : int, optional
            Of this process. Default: all processors that it may use.

        Returns
        -------
        Booster
            This model; its trees are the same. Models derived from it that predict other numbers (`truncate`, `refit_leaves`, a
            continued fit) have no margin.

        Raises
        ------
        ParameterError
            For a model of classes; for an invalid coverage; for too many values of `by`.
        DataError
            If there are fewer rows than the coverage needs (9 for 0.9, 19 for 0.95); as of `predict`.

        Warns
        -----
        UserWarning
            If these are the rows that the model was trained on: as many rows with the same mean loss, whatever their form.

        References
        ----------
        Lei, G'Sell, Rinaldo, Tibshirani and Wasserman (2018), "Distribution-free predictive inference for regression".
        Romano, Patterson and Candès (2019), "Conformalized quantile regression".

        Examples
        --------
        >>> booster.calibrate(held_out, "price", coverage=0.9)                  # doctest: +SKIP
        >>> booster.predict_interval(new_rows)                                  # doctest: +SKIP
        """
        training = calibration.TrainingLoss.of(self.ensemble)
        if sample_weight is None and filter is None and self._is_trained_on(data):  # some of these may have been held out
            warn(calibration.TRAINED_ON)
            training = None
        if is_dataset(data):
            options = {"target": target, "by": by, "sample_weight": sample_weight, "offset": offset, "filter": filter}
            data = data if isinstance(data, Dataset) else Dataset(data)
            return self._calibrated_on(data, coverage, client, options, training)
        target = self.target_name if target is None else target
        if target is None:
            raise InputTypeError("the target is missing: give the name of a column, or one value per row")
        data = data if filter is None else filtered(data, filter, self.features)
        rows = calibration.GivenRows(data, target, sample_weight, self._offset_of(data, offset))
        margins = calibration.calibrated(self.ensemble, self.outputs, rows, coverage, by, client, n_threads, training)
        return self.set_calibration(margins)

    def _is_trained_on(self, data: Any) -> bool:
        trained_on = self._trained_on()
        if isinstance(trained_on, str):
            return isinstance(data, str | Path) and str(data) == trained_on
        return trained_on is not None and data is trained_on

    def _calibrated_on(
        self, data: Dataset, coverage: float, client: Any, keywords: dict[str, Any], training: calibration.TrainingLoss | None
    ) -> Self:
        """Return the model calibrated with the rows of a data set.

        keywords : arguments that a data set does not take; training : as of `calibration.margins`.
        """
        for name, value in keywords.items():
            if value is not None:
                raise ParameterError(f"{name} belongs to dboost.prepare or to a table: a data set has bins only")
        self.outputs.check_intervals()
        with data._rows(client).for_folds() as rows:
            target = Target(self.outputs.loss, None, None)
            y = encode_column(rows.targets(), target, lambda row: f"row {row} of those of positive weight")
            raw, weights = rows.scores(self.ensemble), rows.weights()
        return self.set_calibration(calibration.calibrated_by_scores(self.outputs, y, raw, weights, coverage, training))

    def set_calibration(self, calibration: Calibration) -> Self:
        """Set the margins of this model, which are part of its digest: those of `calibration` of another model."""
        if not isinstance(calibration, Calibration):
            raise InputTypeError(
                f"set_calibration takes the calibration of another model, not {type(calibration).__name__}: calibrate(data, "
                "target) finds that of held-out rows"
            )
        self.ensemble = replace(self.ensemble, calibration=calibration)
        vars(self).pop("sha256", None)
        return self

    @property
    def calibration(self) -> Calibration | None:
        """The margins that `calibrate` has found (``margin``, with `by` also ``levels`` and ``margins``); None before."""
        return self.ensemble.calibration

    @accepts_names_of_intervals
    def predict_interval(
        self,
        X: TableLike,
        n_threads: int | None = None,
        *,
        offset: ColumnLike | None = None,
        filter: RowFilterLike | None = None,
    ) -> Predictions:
        """Predict an interval for each row that contains the target with the probability given to `calibrate`.

        Parameters
        ----------
        X : as in `predict`
            With the column `by` of the calibration, if it has one.
        n_threads, offset, filter
            As in `predict`.

        Returns
        -------
        Array, DataFrame or dask collection [n_rows, 2]
            The kind of X, with the columns ``lower`` and ``upper``. Where targets cannot be negative (poisson, gamma, tweedie),
            bounds are at least 0.

        Raises
        ------
        ParameterError
            If the model has not been calibrated.
        DataError
            As of `predict`.

        Examples
        --------
        >>> booster.predict_interval(frame)["lower"]                # doctest: +SKIP
        """
        X = X if filter is None else filtered(X, filter, self.features)
        margins = self._margins()
        column = None if margins.by is None else LevelColumn.of(self.features, margins.by, margins.levels)
        features = self.features if column is None or column.is_feature else (*self.features, column.feature)
        function = partial(self._intervals, margins, column, _threads_for(X, n_threads))
        return self._map_rows(X, function, COLUMNS, np.float64, self._offset_of(X, offset), features)

    def _intervals(
        self, margins: Calibration, column: LevelColumn | None, n_threads: int | None, block: np.ndarray,
        offset: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        group = None if column is None else column.groups(block[:, column.position], margins.levels)
        if column is not None and not column.is_feature:
            block = np.ascontiguousarray(block[:, :-1])
        bounds = margins.bounds(self._interval_base(block, n_threads, offset), group)
        return self.outputs.in_range(bounds)

    def _margins(self) -> Calibration:
        if self.calibration is None:
            self.outputs.check_intervals()
            raise ParameterError(
                "the model has no margins for intervals: booster.calibrate(rows, target) returns the model with margins, from "
                "rows that it has not been trained on"
            )
        return self.calibration

    def _interval_form(self, iteration_range: Range | None) -> OutputForm:
        """Return the form of intervals, of a model with one margin."""
        margins = self._margins()
        if margins.by is not None:
            raise ParameterError(
                f"the margins of the model depend on the column {margins.by!r}, which predictor('interval') does not read: "
                "call predict_interval"
            )
        if iteration_range is not None:
            raise ParameterError("margins are those of all iterations: leave iteration_range out for intervals")
        return OutputForm(partial(_bounds_of, self.outputs, margins), COLUMNS)

    def _interval_base(self, block: np.ndarray, n_threads: int | None, offset: np.ndarray | None) -> IntervalBase:
        raw = self._flat.raw_scores(block, (0, self.n_iter_), n_threads)
        return self.outputs.interval_of(self.outputs.with_offset(raw, offset))

    @accepts_names_of_predictions
    def decide(
        self,
        X: TableLike,
        costs: Any,
        iteration_range: Range | None = None,
        n_threads: int | None = None,
        *,
        offset: ColumnLike | None = None,
    ) -> Predictions:
        """Choose the class with the lowest expected cost under the predicted probabilities.

        Parameters
        ----------
        X : as in `predict`
        costs : float[n_classes, n_classes]
            ``costs[k, j]`` is the cost of predicting class k where the true class is j, in the order of `classes_`. A pandas
            frame with the classes as labels of rows and columns may have them in any order.
        iteration_range, n_threads, offset
            As in `predict`.

        Returns
        -------
        Classes, in the kind of X
            argmin over k of Σ_j costs[k, j] p_j; of classes with equal costs, the first.

        Raises
        ------
        ParameterError
            For a regression model, or if `costs` is not a matrix of finite numbers with one row and column per class.

        Examples
        --------
        >>> booster.decide(frame, [[0, 5], [1, 0]])  # a missed second class costs 5     # doctest: +SKIP
        """
        return self._through(X, self.outputs.decision(costs), iteration_range, n_threads, offset)

    @accepts_names_of_predictions
    def staged_predict(
        self, X: TableLike, raw_score: bool = False, n_threads: int | None = None, *, offset: ColumnLike | None = None
    ) -> Iterator[Predictions]:
        """Yield what `predict` gives after one iteration, after two, and so on.

        Data in memory are read once, and each stage adds the trees of one iteration to the previous stage. For Dask the
        stages are lazy and independent of each other.
        """
        return self._staged(X, self._form(raw_score), n_threads, offset)

    @accepts_names_of_predictions
    def staged_predict_proba(
        self, X: TableLike, n_threads: int | None = None, *, offset: ColumnLike | None = None
    ) -> Iterator[Predictions]:
        """Yield what `predict_proba` gives after one iteration, after two, and so on."""
        return self._staged(X, self.outputs.form("probability"), n_threads, offset)

    @accepts_names_of_trees
    def apply(self, X: TableLike, iteration_range: Range | None = None, n_threads: int | None = None) -> Predictions:
        """Return the leaf that each row reaches in each tree; parameters and errors as of `predict`.

        Returns
        -------
        Array, DataFrame (with columns tree_0, tree_1, …) or dask collection [n_rows, n_trees] of int32
            Leaves are numbered 0, 1, 2, … from left to right; with K classes an iteration has K columns, in class
            order.
        """
        iterations = self._iterations(iteration_range)
        first, last = self.ensemble.trees_in(iterations)
        leaves = partial(self._leaves, iterations=iterations, n_threads=_threads_for(X, n_threads))
        return self._map_rows(X, leaves, [f"tree_{t}" for t in range(first, last)], np.int32)

    # Files and pickles.

    def save(self, path: str | os.PathLike[str], history: bool = False) -> None:
        """Write the model to a file atomically; an existing file is replaced.

        Parameters
        ----------
        path : path or URL
            A name that ends in ".dboost" selects the compact form, a fraction of the size of the JSON form. A further ".gz"
            compresses the file by gzip.
        history : bool, default False
            Also write the history, of which the model's file holds only the metrics, to ``<path>.history.csv``.

        Raises
        ------
        ModelFileError
            Naming the file that cannot be written.

        Examples
        --------
        >>> booster.save("s3://models/churn.dboost")                # doctest: +SKIP
        """
        model_file.save(self.ensemble, path)
        if history:
            write_whole(f"{without_query(path_text(path))}.history.csv", self.history.to_csv(index=False).encode())

    def __reduce__(self) -> tuple[Callable[..., Booster], tuple[Any, ...]]:
        # The compact form: a quarter of the bytes in messages and graphs of Dask, and read in a sixth of the time.
        return _restore, (model_file.dumps_compact(self.ensemble), self._history, self.timings, self._custom_loss, self._notes)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state as skops stores it: text, numbers and lists, and a loss of the user's own."""
        history = None if self._history is None else self._records
        state = {"model": model_file.dumps(self.ensemble).decode(), "history": history, "timings": self.timings}
        return state if self._custom_loss is None else state | {"loss": self._custom_loss}

    def __setstate__(self, state: dict[str, Any]) -> None:
        model = model_file.loads(state["model"].encode(), "the model that skops has read")
        Booster.__init__(self, model)
        self._record(state["history"], state["timings"], state.get("loss"))

    def __dask_tokenize__(self) -> tuple[str, str]:
        return type(self).__qualname__, self.sha256

    def __eq__(self, other: object) -> bool:
        return self.sha256 == other.sha256 if isinstance(other, Booster) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.sha256)

    def __getitem__(self, iterations: slice) -> Self:
        """Return the model of the first iterations: ``booster[:50]`` is ``booster.truncate(50)``."""
        if not isinstance(iterations, slice):
            raise InputTypeError(f"a model has no item {iterations!r:.60}: booster[:50] is that of the first 50 iterations")
        first, last, step = iterations.indices(self.n_iter_)
        if (first, step) != (0, 1):
            raise ParameterError(
                "a model begins with its first iteration: booster[:50] is that of the first 50, and "
                "predict(X, iteration_range=(first, last)) takes any of them"
            )
        return self.truncate(last)

    __iter__ = None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise unknown_attribute(self, name, learning=_LEARNING)

        def __setattr__(self, name: str, value: Any) -> None:
            """Refuse attributes that would seem to change the model."""
            error = refused_attribute_of_model(name, _LEARNING)
            if error is not None:
                raise error
            super().__setattr__(name, value)

    def __repr__(self) -> str:
        by = self._notes.get("ended_by", "max_iter")
        ended = "" if by == "max_iter" else f" (ended by {by})"
        size = f"{self.n_iter_} iterations{ended}, {self.n_features_in_} features"
        return f"<Booster: {self.ensemble.loss['name']}, {self.outputs.kind}, {size}>"

    def _repr_html_(self) -> str:
        return page.card(self.ensemble)

    # Models derived from this one.

    def truncate(self, n_iterations: int) -> Self:
        """Return the model as it was after its first iterations.

        Parameters
        ----------
        n_iterations : int
            From 0 (only the baseline, with the record of the first source) to `n_iter_`.

        Returns
        -------
        Booster
            A new model; this one is unchanged.

        Raises
        ------
        ParameterError
            For a number above `n_iter_` or below 0.
        """
        return self._derived(truncate(self.ensemble, n_iterations))

    def drop_source(self, source: int | str) -> Self:
        """Return the model without the trees of one fit.

        Later trees were fitted to the residuals of the dropped ones, so the result is a model that never existed: evaluate it
        before you use it. The baseline (of the first data) and the levels of categories stay. Metrics of later iterations
        become NaN, because they were measured with the dropped trees.

        Parameters
        ----------
        source : int or str
            Number in `sources` (negative: from the end), or the label given as ``source_name``.

        Returns
        -------
        Booster

        Raises
        ------
        ParameterError
            For a source that does not exist, a label that is not unique, or the only source.
        """
        return self._derived(drop_source(self.ensemble, source))

    def refit_leaves(
        self,
        data: TableLike,
        target: TargetLike | None = None,
        *,
        sample_weight: ColumnLike | None = None,
        offset: ColumnLike | None = None,
        decay: float = 0.0,
        source_name: str | None = None,
        client: Client | None = None,
        n_threads: int | None = None,
    ) -> Self:
        """Return the model with leaf values estimated again from other data; the splits stay.

        An alternative to more trees (``dboost.fit(…, start_from=…)``) where the same features matter but their effects have
        changed. `dboost.training.leaf_refit` has the method.

        Parameters
        ----------
        data, target, sample_weight, offset
            As in `dboost.fit`, with the model's columns. Unknown levels count as missing. A `dboost.Dataset` has its own
            target, weights and offsets; the thresholds of the model must be edges of its bins.
        decay : float, default 0.0
            From 0 to below 1: a leaf's value becomes ``decay · old + (1 - decay) · new``; leaves without rows keep theirs.
        source_name : str, optional
            Label of the data in `sources`, where the record of every source then has an entry "refreshed".
        client : distributed.Client, optional
            Read and process the rows on its cluster. Default: for Dask collections and paths the current client if there is
            one, else this process. The values are the same.
        n_threads : int, optional
            Default: all processors that this process may use.

        Returns
        -------
        Booster

        Raises
        ------
        ParameterError
            For a model with monotonic constraints, or with trees that were added with another `step` than "leaf".
        DataError
            If columns or target do not match the model, or a numeric feature holds an infinite value.
        """
        decay, threads = Number(least=0.0, below=1.0).checked("decay", decay), available_threads(n_threads)
        if not is_dataset(data):
            offset = self._offset_of(data, offset)
        rows = input_of(data, ... if target is None else target, sample_weight=sample_weight, offset=offset, client=client)
        check_order_of_targets(rows.roles.get("target"), self.outputs.loss)
        return self._derived(
            rows.refit(
                self.ensemble,
                decay=decay,
                source_name=checked_source_name(source_name),
                custom_loss=self._custom_loss,
                n_threads=threads,
            )
        )

    # Interpretation.

    def importance(
        self,
        kind: str = "friedman",
        data: TableLike = None,
        target: TargetLike | None = None,
        *,
        per_class: bool = False,
        sample_weight: ColumnLike | None = None,
        offset: ColumnLike | None = None,
        metric: Any = None,
        n_repeats: int | None = None,
        random_state: int | None = None,
        n_threads: int | None = None,
    ) -> pd.Series | pd.DataFrame:
        """Return the importance of each feature, largest first and scaled to 100.

        Parameters
        ----------
        kind : {"friedman", "gain", "cover", "count", "permutation"}, default "friedman"
            Root of the mean squared-error improvement, equations (44), (45) and (49) of Friedman (2001); reduction of the loss
            by the splits; Hessians of the rows at the splits; number of splits; or how much a metric gets worse when the
            feature's values are permuted.
        data, target : as in `dboost.fit`, optional
            For "permutation", which needs them: ideally held-out rows.
        per_class : bool, default False
            Return a frame with one column per class, each scaled to 100.
        sample_weight, offset : as in `dboost.fit`, optional
            For "permutation".
        metric : str, dboost.metrics.Metric or callable, optional
            For "permutation": a metric that applies to the loss. Default: the loss.
        n_repeats : int, optional
            For "permutation": permutations of each feature, at least 1. Default: 5.
        random_state : int, optional
            For "permutation": the seed. Default: 0.
        n_threads : int, optional
            For "permutation". Default: all processors that this process may use.

        Returns
        -------
        Series by feature, or DataFrame features × classes
            ``attrs["unit"]`` is the value that 100 stands for.

        Raises
        ------
        ParameterError
            For an unknown kind; for `per_class` with a regression model or with "permutation"; for arguments that the kind
            does not take.

        Examples
        --------
        >>> booster.importance().head(3)                            # doctest: +SKIP
        >>> booster.importance("permutation", test, "price")        # doctest: +SKIP
        """
        if isinstance(data, bool):
            raise ParameterError(f"the second argument of importance is data: write importance({kind!r}, per_class={data})")
        options = {
            "data": data, "target": target, "sample_weight": sample_weight, "offset": self._offset_of(data, offset),
            "metric": metric, "n_repeats": n_repeats, "random_state": random_state, "n_threads": n_threads,
        }  # fmt: skip
        chosen = {name: value for name, value in options.items() if value is not None}
        return importance.importance(self.ensemble, kind, per_class, chosen)

    @cached_property
    def expected_value(self) -> float | np.ndarray:
        """Start value of the path-dependent Shapley values, in raw scores; a float, or float64[n_classes].

        It is the prediction of the trees when no feature is known, weighted by the Hessians of the training rows. With a
        background, Shapley values start at the mean of ``predict(background, raw_score=True)`` instead.
        """
        expected = shapley.expected_value(self.ensemble)
        return float(expected[0]) if len(expected) == 1 else expected

    @accepts_names_of_trees
    def shap_values(
        self,
        X: TableLike,
        *,
        background: Any = None,
        interactions: bool = False,
        as_explanation: bool = False,
        n_threads: int | None = None,
    ) -> Predictions:
        """Return exact Shapley values: how much each feature moved each prediction, in raw scores.

        Parameters
        ----------
        X : as in `predict`
        background : table in memory, optional
            Rows whose values replace features that are not yet known ("interventional"; 100 rows are plenty). Default: the
            training rows at each node ("path-dependent"), as in XGBoost's ``pred_contribs``.
        interactions : bool, default False
            Split the values into main effects and pairwise interactions.
        as_explanation : bool, default False
            Return a `shap.Explanation` for the plots of the library shap, which must be installed. For rows in memory.
        n_threads : int, optional
            Default: all processors for data in memory, one per partition for Dask.

        Returns
        -------
        array, DataFrame or dask collection [n_rows, n_features]
            The kind of X. With K classes an array [n_rows, n_features, n_classes], lazy for Dask; with interactions
            [n_rows, n_features, n_features] or [n_rows, n_features, n_features, n_classes], symmetric. The values of a row
            add up to its raw score minus `expected_value` (or minus the background's mean raw score).

        Raises
        ------
        DataError
            As of `predict`.
        ParameterError
            If the background is not a table in memory or has no rows; for `as_explanation` with Dask collections or paths.
        MissingExtraError
            For `as_explanation` without shap.

        Examples
        --------
        >>> values = booster.shap_values(frame)                     # doctest: +SKIP
        >>> values.sum(axis=1) + booster.expected_value             # doctest: +SKIP
        """
        compute = shapley.explanation if as_explanation else shapley.shap_values
        return compute(self.ensemble, X, background, interactions, n_threads)

    def partial_dependence(
        self,
        data: TableLike = None,
        features: Any = None,
        kind: str = "average",
        *,
        grid: Any = None,
        scale: str = "raw",
        centered: bool = False,
        max_rows: int = 1000,
        sample_weight: ColumnLike | None = None,
        offset: ColumnLike | None = None,
        n_threads: int | None = None,
    ) -> pd.DataFrame:
        """Return how predictions depend on one or two features.

        Parameters
        ----------
        data : as in `predict`, optional
            Rows to average over. Default: the trees are traversed with the fractions of their training rows.
        features : name or position, or two of them
            May be the only argument.
        kind : {"average", "individual", "conditional"}, default "average"
            Partial dependence, equations (51)–(53) of Friedman (2001); one curve per row (50); or the mean prediction of the
            rows that have the value, or one nearest to it (56). The last two need data.
        grid : int, list of values, list of two lists, or dict by name, optional
            Largest number of points per feature, or the points. NaN and None mean missing. Default: 50 points, or 20 for each
            of two features.
        scale : {"raw", "prediction"}, default "raw"
            Raw scores, or numbers and probabilities. Without data, the inverse link is applied to the averaged raw scores.
        centered : bool, default False
            Subtract from each curve its mean over the grid.
        max_rows : int, default 1000
            Largest number of individual curves, evenly spaced over the data.
        sample_weight : name of a column, or one number per row of data in memory, optional
            Weights for means over rows.
        offset : as `sample_weight`, optional
            Where the raw scores of rows start, as in `predict`.
        n_threads : int, optional
            Default: all processors that this process may use.

        Returns
        -------
        DataFrame
            A column per feature ("feature x" for a feature called value, class, row or count), ``value``; ``class`` with K
            classes, ``row`` (position in the data) for individual curves, ``count`` of rows for conditional means, which
            are NaN without rows. ``attrs["deciles"]`` has the deciles of numeric features, if there are data.

        Raises
        ------
        ParameterError
            For an unknown feature, kind, scale or level; more than two features; missing rows; weights without rows.
        DataError
            As of `predict`; and for weights that are missing, infinite or negative.

        Examples
        --------
        >>> booster.partial_dependence(frame, "age", grid=20)       # doctest: +SKIP
        >>> booster.partial_dependence(["age", "town"], scale="prediction")      # doctest: +SKIP
        """
        return dependence.partial_dependence(
            self.ensemble, *dependence.in_order(data, features), kind=kind, grid=grid, scale=scale, centered=centered,
            max_rows=max_rows, n_threads=n_threads,
            roles=row_functions.ScoringRoles(sample_weight, self._offset_of(data, offset)),
        )  # fmt: skip

    @accepts_names_of_trees
    def drift(self, data: TableLike, target: TargetLike | None = None, source: int | str = -1) -> pd.DataFrame:
        """Compare other rows with the training rows.

        Parameters
        ----------
        data : as in `predict`
            Partitions of Dask collections and files are counted where they are.
        target : str, or one value per row, optional
            Compare the targets too. For Dask collections and files the name of a column.
        source : int or str, default -1
            Whose data to compare with: number in `sources`, or label. Default: the last source.

        Returns
        -------
        DataFrame
            One row for each feature (``what`` "feature"), for the raw scores of each output ("score"; only if the source is
            the last one and the model has not been edited) and for the target ("target"), largest drift first:

            ``drift``
                "strong" if ``psi`` is at least 0.25 above ``chance``, "moderate" from 0.1 on, else "none".
            ``psi``
                Population stability index over about 20 groups of values and one each for values below and above the training
                range (or the 100 most frequent levels and unknown ones), and one group for missing values: the sum of
                (q - p) ln(q / p) over the fractions p before and q now.
            ``chance``
                The 99.9 % quantile of the index for rows of the same population; large for few rows.
            ``distance``
                Numbers: the largest difference of the distribution functions (Kolmogorov–Smirnov) at the groups' borders.
                Categories: the total variation distance. Missing values do not count.
            ``missing_before``, ``missing``
                Fractions of missing values.
            ``outside``
                Numbers: fraction of rows below the smallest or above the largest training value.
            ``unseen``
                Categories: fraction of rows with levels that the model does not have.

            ``attrs`` has ``source``, ``rows_before`` and ``rows``. Training data with more than 10,000 rows are represented by
            a sample of about 10,000.

        Raises
        ------
        ParameterError
            If the model has no summary of its training data (its file is of an earlier version, or it was imported), or for an
            unknown source.
        DataError
            As of `predict`.
        """
        return drift.drift(self.ensemble, data, target, source)

    @accepts_names_of_trees
    def additivity(
        self, data: TableLike, features: Any, *, max_rows: int = 10_000, sample_weight: ColumnLike | None = None
    ) -> pd.Series | pd.DataFrame:
        """Measure whether a set of features acts additively, multiplicatively or neither with the other features.

        Parameters
        ----------
        data : as in `predict`
        features : name or position, or several of them
            z, a proper subset of the features.
        max_rows : int, default 10_000
            Largest number of rows, evenly spaced over the data.
        sample_weight : as in `partial_dependence`, optional

        Returns
        -------
        Series, or with K classes DataFrame with a column per class
            ``additive``: correlation over the rows of the raw score F with F_z + F_rest, equation (54) of Friedman (2001);
            ``multiplicative``: with F_z · F_rest (55), where F_z and F_rest are the dependences on z and on all others;
            ``h``: Friedman's H of z against the rest, the root of the fraction of F's variance that F_z + F_rest does not
            explain. NaN where F does not vary.

        Raises
        ------
        ParameterError
            For unknown features, or all of them.
        DataError
            As of `predict`.
        """
        return dependence.additivity(self.ensemble, *dependence.in_order(data, features), max_rows, sample_weight)

    @accepts_names_of_trees
    def interaction_strength(
        self, data: TableLike, features: Any = None, *, max_rows: int = 500, sample_weight: ColumnLike | None = None
    ) -> pd.DataFrame:
        """Return the H statistic of pairs of features: the fraction of their joint effect that is interaction.

        Parameters
        ----------
        data : as in `predict`
        features : sequence of names or positions, optional
            All pairs of these. Default: the ten most important features.
        max_rows : int, default 500
            Largest number of rows, evenly spaced over the data.
        sample_weight : as in `partial_dependence`, optional

        Returns
        -------
        DataFrame
            ``feature_1``, ``feature_2``, ``h`` (0: additive; 1: pure interaction), ``class`` with K classes; strongest first.
            h is 0 if no tree has a path with both features, NaN if the pair's dependence does not vary.

        Raises
        ------
        ParameterError
            For unknown features, or fewer than two.
        DataError
            As of `predict`.

        References
        ----------
        Friedman and Popescu (2008), "Predictive learning via rule ensembles", section 8.1.
        """
        return dependence.interaction_strength(self.ensemble, data, features, max_rows, sample_weight)

    # Plots. Each takes ``ax``, the matplotlib axes to draw on (default: new ones), and returns the axes, or an array of them
    # for several panels; ``ax.figure.savefig("name.svg")`` saves the plot. They need matplotlib (``dboost[plots]``).

    def plot_importance(
        self,
        kind: str = "friedman",
        data: TableLike = None,
        target: TargetLike | None = None,
        *,
        max_features: int = 20,
        ax: Any = None,
        **how: Any,
    ) -> Any:
        """Plot `importance` as bars, the largest on top.

        Parameters
        ----------
        kind, data, target, **how
            As in `importance`.
        max_features : int, default 20
            Largest number of bars.
        """
        return effects.plot_importance(self.importance(kind, data, target, **how), max_features, ax)

    def plot_partial_dependence(
        self, data: TableLike = None, features: Any = None, kind: str = "average", *, ax: Any = None, **how: Any
    ) -> Any:
        """Plot `partial_dependence` as a line, bars, a surface, panels (if one of two features is categorical), or a table.

        Parameters are those of `partial_dependence`. Short lines inside the axis are the deciles of the data. Individual
        curves are drawn with their mean.
        """
        return effects.plot_partial_dependence(self.ensemble, self.partial_dependence(data, features, kind, **how), ax)

    def plot_history(self, *, ax: Any = None) -> Any:
        """Plot the metrics over the iterations, one panel per metric, with the best iteration marked."""
        return performance.plot_history(self.ensemble, self.history, ax)

    def plot_tree(self, i: int = 0, *, ax: Any = None) -> Any:
        """Plot one tree with its root on the left.

        Parameters
        ----------
        i : int, default 0
            With K classes, tree i belongs to class i modulo K; −1 is the last tree.

        Raises
        ------
        ParameterError
            For a tree that does not exist.
        """
        return tree_diagram.plot_tree(self.ensemble, i, ax)

    @accepts_names_of_trees
    def plot_shap_summary(
        self, X: TableLike, *, output: Any = None, background: Any = None, max_features: int = 15, ax: Any = None
    ) -> Any:
        """Plot Shapley values, one dot per row and feature, with the largest effects on top.

        Dots have the color of the feature's value. Those of categories are grey, with the mean of each category as a tick.

        Parameters
        ----------
        X : as in `predict`
            At most 2000 rows are drawn, evenly spaced.
        output : class, optional
            Whose scores, with several classes. Default: the class that most rows are predicted to have. The title names it.
        background : table in memory, optional
            As in `shap_values`.
        max_features : int, default 15
        """
        return attributions.plot_summary(self.ensemble, X, output, background, max_features, ax)

    @accepts_names_of_trees
    def plot_shap_dependence(
        self, X: TableLike, feature: Any, *, output: Any = None, background: Any = None, ax: Any = None
    ) -> Any:
        """Plot a feature's Shapley values over its values; parameters as of `plot_shap_summary`."""
        X, feature = dependence.in_order(X, feature)
        return attributions.plot_dependence(self.ensemble, X, feature, output, background, ax)

    @accepts_names_of_trees
    def plot_waterfall(
        self, X: TableLike, row: int = 0, *, output: Any = None, background: Any = None, max_features: int = 10, ax: Any = None
    ) -> Any:
        """Plot the Shapley values of one row, from the expected score to the row's score.

        Parameters
        ----------
        X : table in memory
        row : int, default 0
            Position of the row in X.
        output : class, optional
            Whose scores, with several classes. Default: the class that is predicted.
        background : table in memory, optional
            As in `shap_values`.
        max_features : int, default 10
        """
        return attributions.plot_waterfall(self.ensemble, X, row, output, background, max_features, ax)

    def plot_calibration(
        self,
        data: TableLike,
        target: TargetLike,
        *,
        sample_weight: ColumnLike | None = None,
        offset: ColumnLike | None = None,
        output: Any = None,
        n_bins: int = 10,
        ax: Any = None,
    ) -> Any:
        """Plot the frequency of a class over its predicted probability, on held-out rows.

        Parameters
        ----------
        data, target, sample_weight, offset : as in `dboost.fit`
        output : class, optional
            Default: the last one.
        n_bins : int, default 10
            Groups of equally many rows, or of equal weight.

        Raises
        ------
        ParameterError
            For a regression model.
        """
        rows = self._evaluated(data, target, sample_weight, offset)
        return performance.draw_calibration(rows, output, n_bins, ax)

    def plot_lift(
        self,
        data: TableLike,
        target: TargetLike,
        *,
        sample_weight: ColumnLike | None = None,
        offset: ColumnLike | None = None,
        output: Any = None,
        ax: Any = None,
    ) -> Any:
        """Plot the fraction of a class that the most probable rows contain; parameters as of `plot_calibration`."""
        rows = self._evaluated(data, target, sample_weight, offset)
        return performance.draw_lift(rows, output, ax)

    def plot_residuals(self, data: TableLike, target: TargetLike, *, offset: ColumnLike | None = None, ax: Any = None) -> Any:
        """Plot target minus prediction over the prediction, on held-out rows; for regression models.

        Parameters
        ----------
        data, target, offset : as in `dboost.fit`
        """
        rows = self._evaluated(data, target, None, offset)
        return performance.draw_residuals(rows, target, ax)

    def plot_coverage(
        self,
        data: TableLike,
        target: TargetLike,
        *,
        sample_weight: ColumnLike | None = None,
        offset: ColumnLike | None = None,
        n_bins: int = 10,
        ax: Any = None,
    ) -> Any:
        """Plot which share of held-out targets `predict_interval` covers, over the width of the intervals.

        Rows are in groups by width; if all intervals are equally wide, by the middle of the interval. Rows other than those of
        `calibrate` show whether the coverage holds, and whether it holds for narrow and wide intervals alike.

        Parameters
        ----------
        data, target, sample_weight, offset : as in `dboost.fit`
            With the column `by` of the calibration, if it has one.
        n_bins : int, default 10
            Groups of equally many rows, or of equal weight.

        Raises
        ------
        ParameterError
            If the model has not been calibrated.
        """
        by = None if self.calibration is None else self.calibration.by
        offset = self._offset_of(data, offset)
        data = row_functions.rereadable_rows(data, self.ensemble, target, sample_weight, offset, by)
        no_offset = False if offset is None else offset
        bounds = self.predict_interval(data, offset=no_offset)
        bounds = np.asarray(bounds.compute() if hasattr(bounds, "compute") else bounds, np.float64)
        rows = self._evaluated(data, target, sample_weight, no_offset)
        return performance.draw_coverage(rows, bounds, n_bins, ax)

    def report(
        self,
        path: str | os.PathLike[str],
        data: TableLike = None,
        target: TargetLike | None = None,
        sample_weight: ColumnLike | None = None,
        *,
        offset: ColumnLike | None = None,
        card: Mapping[str, str] | None = None,
    ) -> None:
        """Write a report as one HTML page without external resources: the model, its training, quality and interpretation.

        Parameters
        ----------
        path : path or URL
            Written atomically; an existing file is replaced.
        data : as in `predict`, optional
            Rows, ideally held-out ones, for Shapley values, dependence and interactions (2000 of them, evenly spaced).
            Default: importance and dependence are computed from the trees alone.
        target : as in `dboost.fit`, optional
            The rows' target, for metrics, curves of ROC, precision and recall, calibration and lift, or residuals. Default: the
            column of this name that the model was trained on, if the data have it (`target_name`).
        sample_weight : name of a column, or one number per row of data in memory, optional
            Weights for metrics, calibration, lift, dependence and interactions.
        offset : as `sample_weight`, optional
            Where the raw scores of rows start, as in `predict`: for metrics, calibration, lift, residuals and dependence.
        card : mapping of str to str, optional
            Add a model card: these statements by heading ("Intended use", "Limitations", "Authors", …), a summary of the
            training data, and caveats that follow from the model, such as rare classes. May be empty. Default: no card.

        Raises
        ------
        ParameterError
            For a target, weights or offsets without data.
        DataError, ModelFileError
            As of `predict` and of `save`.
        """
        if not isinstance(path, str | os.PathLike):
            raise InputTypeError('the path of the page comes first: report("report.html", data, target)')
        if target is None and self.target_name is not None and data is not None and self.target_name in names_of_rows(data):
            target = self.target_name
        page.write(self, path, data, target, row_functions.ScoringRoles(sample_weight, self._offset_of(data, offset)), card)

    # Exports.

    @accepts_names_of_trees
    def to_matrix(self, X: TableLike) -> Predictions:
        """Return rows in the form that exported models read: numbers, NaN where missing.

        A level of a categorical feature is represented by itself if all levels of the feature are whole numbers from 0 to
        16,777,215 or truth values, else by its position in the feature's `categories`. Unknown levels are NaN.

        Parameters
        ----------
        X : as in `predict`

        Returns
        -------
        Array [n_rows, n_features] of float64 for arrays and lists; a frame for frames; lazy for Dask
            XGBoost and ONNX round it to float32.
        """
        return export.to_matrix(self.ensemble, X)

    def to_xgboost_json(self, path: str | os.PathLike[str]) -> None:
        """Write the model in XGBoost's JSON format, for ``xgboost.Booster(model_file=path)``.

        The exported model reads rows of `to_matrix`. Its thresholds, leaves and sums are float32, so predictions agree to
        float32 rounding; a float32 value represents all float64 values that round to it. With the exponential loss the margin
        is twice the raw score.

        Parameters
        ----------
        path : path or URL

        Raises
        ------
        ParameterError
            For a user-defined loss with a link that XGBoost does not have.
        ModelFileError
            If the file cannot be written.
        """
        write_whole(path, to_xgboost.dumps(self.ensemble, self.outputs.loss))

    def to_onnx(self, path: str | os.PathLike[str] | None = None) -> onnx.ModelProto:
        """Return the model as an ONNX graph, for onnxruntime, and write it to a file if there is a path.

        It has one input, ``features`` (float32 [rows, features], see `to_matrix`). Regressors have one output, ``prediction``
        (float32 [rows]); classifiers have ``label`` and then ``probabilities`` (float32 [rows, classes]). Sums are float64
        inside, so predictions agree to float32 rounding.

        Parameters
        ----------
        path : path or URL, optional
            Default: no file is written.

        Returns
        -------
        onnx.ModelProto
            As of ``skl2onnx.to_onnx``; its method ``SerializeToString`` returns the bytes of the file, which
            ``onnxruntime.InferenceSession`` takes, too.

        Raises
        ------
        DBoostError
            If onnx is not installed (``pip install 'dboost[export]'``).
        ParameterError
            For a user-defined loss with a link that the format does not have.
        ModelFileError
            If the file cannot be written.
        """
        model = to_onnx.to_onnx(self.ensemble, self.outputs.loss)
        if path is not None:
            write_whole(path, model.SerializeToString())
        return model

    def to_treelite(self) -> treelite.Model:
        """Return the model as a `treelite.Model`, for compilers and servers that read those.

        The exported model reads rows of `to_matrix`. Thresholds, leaves and sums are float64. ``treelite.gtil`` computes the
        probabilities of three or more classes in float32.

        Raises
        ------
        DBoostError
            If treelite is not installed (``pip install 'dboost[export]'``).
        ParameterError
            For a user-defined loss with a link that treelite does not have.
        """
        return to_treelite.to_treelite(self.ensemble, self.outputs.loss)

    # Private parts of the predictions.

    @cached_property
    def _flat(self) -> FlatEnsemble:
        return FlatEnsemble(self.ensemble)

    def _derived(self, ensemble: Ensemble) -> Self:
        return type(self)(ensemble)._record(loss=self._custom_loss)

    def _form(self, raw_score: bool) -> OutputForm:
        return self.outputs.form("raw_score" if raw_score else "prediction")

    def _iterations(self, iteration_range: Range | None) -> Range:
        if iteration_range is None:
            return 0, self.n_iter_
        try:
            first, last = map(operator.index, iteration_range)
        except (TypeError, ValueError):
            raise ParameterError(f"iteration_range must be two integers, not {iteration_range!r}") from None
        if not 0 <= first <= last <= self.n_iter_:
            raise ParameterError(f"iteration_range {first, last} is not within the model's {self.n_iter_} iterations")
        return first, last

    def _through(self, X: Any, form: OutputForm, iteration_range: Any, n_threads: int | None, offset: Any = None) -> Any:
        iterations = self._iterations(iteration_range)
        function = partial(self._finished, form.finish, iterations=iterations, n_threads=_threads_for(X, n_threads))
        return self._map_rows(X, function, form.columns, form.dtype, self._offset_of(X, offset))

    def _offset_of(self, data: Any, offset: Any) -> Any:
        if isinstance(data, row_functions.Block):
            return offset  # it has its own
        return offset_of_rows(data, offset, self.ensemble.offset)

    def _evaluated(self, data: Any, target: Any, sample_weight: Any, offset: Any) -> row_functions.EvaluatedRows:
        return row_functions.EvaluatedRows(self.ensemble, data, target, sample_weight, self._offset_of(data, offset))

    def _predict_rows(self, form: OutputForm, iterations: Range, X: Any, offset: Any) -> Any:
        """Predict a table in memory in this thread, for `predictor`."""
        return self._through(X, form, iterations, 1, offset)

    def _map_rows(
        self, X: Any, function: Any, names: Sequence[Any] | None, dtype: Any, offset: Any = None,
        features: tuple[Feature, ...] | None = None,
    ) -> Any:  # fmt: skip
        read = self.features if features is None else features
        if offset is not None:
            self.outputs.check_offset()  # of lazy data now, not when they are read
        return predict_through(X, function, features=read, named=self.ensemble.named, names=names, dtype=dtype, offset=offset)

    @short_traceback
    def _staged(self, X: Any, form: OutputForm, n_threads: int | None, offset: Any) -> Iterator[Any]:
        offset = self._offset_of(X, offset)
        if is_path(X) or is_dask(X):
            for iteration in range(self.n_iter_):
                yield self._through(X, form, (0, iteration + 1), n_threads, False if offset is None else offset)
        else:
            values = offsets_of(X, offset, self.features, self.ensemble.named)
            blocks = FeatureBlocks(X, self.features, self.ensemble.named)
            for raw in self._flat.staged_raw_scores(blocks, n_threads):
                yield predictions_like(form.finish(self.outputs.with_offset(raw, values)), X, form.columns)

    def _finished(
        self, finish: Callable[..., Any], block: np.ndarray, iterations: Range, n_threads: int | None, offset: Any = None
    ) -> np.ndarray:
        raw = self._flat.raw_scores(block, iterations, n_threads)
        return finish(self.outputs.with_offset(raw, offset))

    def _leaves(self, block: np.ndarray, iterations: Range, n_threads: int | None) -> np.ndarray:
        return self._flat.leaves(block, iterations, n_threads)  # of the booster, whose pickle is smaller than that of `_flat`


def booster_with(
    ensemble: Ensemble,
    *,
    history: list[dict[str, Any]] | None = None,
    timings: dict[str, float] | None = None,
    loss: Loss | Sequence[Loss] | None = None,
    notes: dict[str, Any] | None = None,
) -> Booster:
    """Return a `Booster` with what the process of the fit knows beside the model.

    Parameters
    ----------
    ensemble : Ensemble
    history : list of dict, optional
        What the fit recorded, one row per iteration. Default: the metrics in the ensemble.
    timings : dict of str to float, optional
        Seconds of the fit by phase. Default: empty.
    loss : Loss, optional
        The user-defined loss that the model was trained with. Default: the loss that the ensemble names.
    notes : dict, optional
        Attributes of the history. Default: none.
    """
    return Booster(ensemble)._record(history, timings, loss, notes)


def _restore(
    stored: bytes,
    history: list[dict[str, Any]] | None,
    timings: dict[str, float],
    loss: Loss | Sequence[Loss] | None,
    notes: dict[str, Any],
) -> Booster:
    ensemble = model_file.loads(stored, "the pickled model")
    return booster_with(ensemble, history=history, timings=timings, loss=loss, notes=notes)


def _predictor_of(booster: Booster, output: str, iteration_range: Range | None) -> RowPredictor:
    return booster.predictor(output, iteration_range)


def _threads_for(X: Any, n_threads: int | None) -> int | None:
    """One thread per task where Dask runs tasks in parallel."""
    return 1 if n_threads is None and (is_path(X) or is_dask(X)) else n_threads


@short_traceback
def load(path: str | os.PathLike[str], loss: Loss | None = None) -> Booster:
    """Read a model from its file, in either form. Nothing in the file is executed.

    Parameters
    ----------
    path : path or URL
    loss : Loss, optional
        The user-defined loss that the model was trained with, if it is not registered (see `dboost.losses.register`).

    Returns
    -------
    Booster

    Raises
    ------
    ModelFileError
        Naming the file: it does not exist, is damaged or cut short, or was written by a newer dboost.
    ParameterError
        If the model was trained with another loss than the given one.

    Examples
    --------
    >>> booster = dboost.load("model.json")                         # doctest: +SKIP
    """
    ensemble = model_file.load(path)
    if loss is not None and loss.name not in [part["name"] for part in ensemble.loss.get("losses", [ensemble.loss])]:
        raise ParameterError(
            f"the model in {os.fspath(path)} was trained with loss {ensemble.loss['name']!r}, not {loss.name!r}"
        )
    return booster_with(ensemble, loss=loss)


@short_traceback
def from_xgboost(model: Any, levels: dict[str, Sequence[Level] | int] | None = None) -> Booster:
    """Convert a model of XGBoost to a Booster with the same predictions.

    Supported are tree and DART models, also of several targets, with the objectives reg:squarederror, reg:absoluteerror,
    reg:quantileerror (one level, or several in ascending order), reg:expectileerror (one level), reg:pseudohubererror
    (continued as huber), count:poisson, reg:gamma, reg:tweedie, binary:logistic, binary:logitraw, multi:softprob and
    multi:softmax. Predictions agree to the rounding of XGBoost's float32 sums. Classes are the numbers 0, 1, ….

    Parameters
    ----------
    model : xgboost.Booster, estimator of xgboost, or path or URL of a model file
        JSON and binary files (UBJSON) are read without XGBoost. An early-stopped estimator, or a file that it
        saved, is converted up to its best iteration, and a `xgboost.Booster` with all trees, as XGBoost predicts.
    levels : dict of column names (f0, f1, … for unnamed columns), optional
        The levels of categorical columns in the order of their codes, or their number if the codes are the levels.
        Required if the model does not contain them (before XGBoost 3.1, and for matrices).

    Returns
    -------
    Booster

    Raises
    ------
    ParameterError
        Naming what cannot be converted: other boosters or objectives, or a base_score without a finite raw score; or the
        column whose levels are needed.
    ModelFileError
        Naming the file that does not exist or is not a model.

    Examples
    --------
    >>> booster = dboost.from_xgboost("model.json", levels={"town": ["Gent", "Liège"]})      # doctest: +SKIP
    """
    return Booster(xgboost_import.from_xgboost(model, dict(levels or {})))


@short_traceback
def from_lightgbm(model: Any, levels: dict[str, Sequence[Level] | int] | None = None) -> Booster:
    """Convert a model of LightGBM to a Booster with the same predictions.

    Supported are models of gbdt, dart, goss and rf with the objectives regression, regression_l1, quantile, huber, poisson,
    gamma, tweedie, binary and multiclass. Predictions agree to the rounding of float64. Classes are the numbers 0, 1, ….

    Parameters
    ----------
    model : lightgbm.Booster, estimator of lightgbm, or path or URL of a model file in text
    levels : dict of column names (f0, f1, … for unnamed columns), optional
        The levels of categorical columns in the order of their codes, or their number if the codes are the levels.
        Required if some categorical columns were pandas categories and others numbers.

    Returns
    -------
    Booster

    Raises
    ------
    ParameterError
        Naming what cannot be converted: linear trees, other objectives, zeros as missing; or the columns whose levels are
        needed.
    ModelFileError
        Naming the file that does not exist or is not a model.
    """
    return Booster(lightgbm_import.from_lightgbm(model, dict(levels or {})))


def trained(fitted: FitResult, parameters: Parameters, continued: Booster | None = None, data: TableLike = None) -> Booster:
    """Return the model of a fit, which may have continued another one.

    data : what the user gave to train on, which `Booster.calibrate` recognizes.
    """
    history = fitted.history if continued is None else continued.history_with(fitted.history)
    losses = parameters.loss if isinstance(parameters.loss, tuple) else (parameters.loss,)
    custom = tuple(loss for loss in losses if not isinstance(loss, str))
    loss = custom[0] if len(custom) == 1 else custom or None
    notes = {name: value for name in ("ended_by", "lost_workers") if (value := getattr(fitted, name))}
    booster = booster_with(fitted.ensemble, history=history, timings=fitted.timings, loss=loss, notes=notes)
    with suppress(TypeError):  # of a list; paths are not referenced weakly
        booster._trained_on = partial(str, data) if isinstance(data, str | Path) else weakref.ref(data)
    return booster


def _nothing() -> None:
    """What a model was trained on that has been loaded."""


def intervals_of_folds(
    boosters: Sequence[Booster], selection: Selection, X: TableLike, n_threads: int | None, offset: Any, filter: Any
) -> Any:
    """Return the intervals of rows from the models of all folds; `CVResult.predict_interval` documents the parameters."""
    first = boosters[0]
    X = X if filter is None else filtered(X, filter, first.features)
    function = partial(_intervals_of_folds, boosters, selection, _threads_for(X, n_threads))
    return first._map_rows(X, function, COLUMNS, np.float64, first._offset_of(X, offset))


def _intervals_of_folds(
    boosters: Sequence[Booster], selection: Selection, n_threads: int | None, block: np.ndarray,
    offset: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    bounds = selection.bounds([booster._interval_base(block, n_threads, offset) for booster in boosters])
    return boosters[0].outputs.in_range(bounds)


def _bounds_of(outputs: Outputs, margins: Calibration, raw: np.ndarray) -> np.ndarray:
    return outputs.in_range(margins.bounds(outputs.interval_of(raw), None))


def as_booster(model: Any) -> Booster:
    """Return a model as it is, that of a fitted estimator, or read it from its file.

    Raises
    ------
    InputTypeError
        For another type.
    ModelFileError
        Naming the file that cannot be read.
    """
    if isinstance(model, str | os.PathLike):
        return load(model)
    booster = model if isinstance(model, Booster) else getattr(model, "booster_", None)
    if isinstance(booster, Booster):
        return booster
    raise InputTypeError(
        f"start_from must be a Booster, a fitted estimator of dboost, or the path or URL of a model, not {type(model).__name__}"
    )
