"""Pictures as methods of a `Booster`.

Every method takes ``ax``, the axes to draw on, and returns the axes it drew on (an array of them, where a picture has
panels); ``ax.figure.savefig("name.svg")`` keeps one, in whatever format the name says.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from dboost import losses
from dboost._lazy_import import late, pd
from dboost.errors import ParameterError
from dboost.inspection.evaluated_rows import EvaluatedRows
from dboost.inspection.feature_names import class_names, positions
from dboost.inspection.inspection_methods import Inspection
from dboost.inspection.plots.features import draw_dependence, draw_importance
from dboost.inspection.row_functions import sample
from dboost.model.ensemble import Ensemble

if TYPE_CHECKING:
    from dboost.inspection import shapley
    from dboost.inspection.plots import attributions, history, quality, tree_diagram
    from dboost.inspection.report import card, page
else:  # who only trains and predicts need not wait for them
    (shapley,) = late("dboost.inspection", "shapley")
    attributions, history, quality, tree_diagram = late("dboost.inspection.plots", "attributions history quality tree_diagram")
    card, page = late("dboost.inspection.report", "card page")


class Drawing(Inspection):
    """What a trained model can draw. Needs matplotlib: ``pip install 'dboost[plots]'``."""

    history: pd.DataFrame

    def plot_importance(
        self, kind: str = "friedman", per_class: bool = False, *, max_features: int = 20, ax: Any = None, **how: Any
    ) -> Any:
        """Bars of `importance`, the largest on top; parameters as there, and how many features to show."""
        table = self.importance(kind, per_class, **how)
        return draw_importance(table, _at_least_one("max_features", max_features), ax)

    def plot_partial_dependence(
        self, features: Any, data: Any = None, kind: str = "average", *, ax: Any = None, **how: Any
    ) -> Any:
        """`partial_dependence` as a line, bars, a surface, or panels (a categorical feature × another).

        Parameters are those of `partial_dependence`. Deciles of the data are short lines inside the axis. Of individual
        curves the mean is drawn too.
        """
        table = self.partial_dependence(features, data, kind, **how)
        return draw_dependence(table, score_name(self.ensemble, how.get("scale", "raw"), how.get("centred", False)), ax)

    def plot_history(self, *, ax: Any = None) -> Any:
        """Metrics over the iterations, a panel per metric, the best iteration marked."""
        metrics = self.history[["iteration", *(name for name in self.ensemble.metrics if name in self.history)]]
        return history.draw_history(metrics, losses.from_dict(self.ensemble.loss), self.ensemble.best_iteration, ax)

    def plot_tree(self, i: int = 0, *, ax: Any = None) -> Any:
        """One tree, on its side. With K classes, tree i belongs to class i modulo K; −1 is the last tree.

        Raises
        ------
        ParameterError
            When there is no such tree.
        """
        n = len(self.ensemble.trees)
        if isinstance(i, bool) or not isinstance(i, int | np.integer) or not -n <= i < n:
            raise ParameterError(f"there is no tree {i!r}: the model has {n} trees")
        iteration, output = divmod(int(i) % n, self.ensemble.n_outputs)
        of_class = f", class {class_names(self.ensemble)[output]}" if self.ensemble.n_outputs > 1 else ""
        title = f"Tree of iteration {iteration + 1}{of_class}"
        return tree_diagram.draw_tree(self.ensemble.trees[int(i)], self.ensemble.features, title, ax)

    def plot_shap_summary(
        self, X: Any, *, output: Any = None, background: Any = None, max_features: int = 15, ax: Any = None
    ) -> Any:
        """A dot per row and feature: how far the feature moved the prediction, coloured by its value.

        Parameters
        ----------
        X : as in `predict`
            2000 rows are drawn at most, evenly spaced.
        output : class, optional
            Whose scores, with K classes. Default: the last class.
        background : table in memory, optional
            As in `shap_values`.
        max_features : int
        """
        block = sample(X, self.ensemble, attributions.MAX_POINTS)[1].block
        values, label = self._attributions(block, output, background)
        shown = _at_least_one("max_features", max_features)
        return attributions.draw_summary(values, block, self.ensemble.features, shown, label, ax)

    def plot_shap_dependence(self, feature: Any, X: Any, *, output: Any = None, background: Any = None, ax: Any = None) -> Any:
        """A feature's Shapley values over its values; parameters as of `plot_shap_summary`."""
        (j,) = positions(self.ensemble, feature, at_most=1)
        block = sample(X, self.ensemble, attributions.MAX_POINTS)[1].block
        values, label = self._attributions(block, output, background)
        return attributions.draw_attribution(values[:, j], block[:, j], self.ensemble.features[j], label, ax)

    def plot_waterfall(self, X: Any, row: int = 0, *, output: Any = None, max_features: int = 10, ax: Any = None) -> Any:
        """One row's prediction, step by step from the expected one; parameters as of `plot_shap_summary`.

        row : which row of X (a table in memory).
        """
        block = sample(X, self.ensemble, np.iinfo(np.int64).max)[1].block
        if isinstance(row, bool) or not isinstance(row, int | np.integer) or not -len(block) <= row < len(block):
            raise ParameterError(f"there is no row {row!r}: X has {len(block)} rows")
        one = block[int(row) % len(block)][None]
        values, label = self._attributions(one, output, None)
        start = float(np.atleast_1d(self.expected_value)[self._output(output)])
        shown = _at_least_one("max_features", max_features)
        return attributions.draw_waterfall(values[0], one[0], self.ensemble.features, start, shown, label, ax)

    def plot_calibration(
        self, data: Any, target: Any, *, sample_weight: Any = None, output: Any = None, n_bins: int = 10, ax: Any = None
    ) -> Any:
        """How often a class occurs against how probable it was said to be, on held-out rows.

        Parameters
        ----------
        data, target, sample_weight : as in `dboost.fit`
        output : class, optional
            Default: the last one.
        n_bins : int
            Groups of equally many rows, or of equal weight.

        Raises
        ------
        ParameterError
            When the model predicts numbers.
        """
        truth = EvaluatedRows(self.ensemble, data, target, sample_weight)
        is_one, probability, name = truth.of_class(output)
        return quality.draw_calibration(is_one, probability, truth.weight, str(name), _at_least_one("n_bins", n_bins), ax)

    def plot_lift(self, data: Any, target: Any, *, sample_weight: Any = None, output: Any = None, ax: Any = None) -> Any:
        """How many rows of a class are found by looking at the most probable ones first; parameters as above."""
        truth = EvaluatedRows(self.ensemble, data, target, sample_weight)
        is_one, probability, name = truth.of_class(output)
        return quality.draw_lift(is_one, probability, truth.weight, str(name), ax)

    def plot_residuals(self, data: Any, target: Any, *, ax: Any = None) -> Any:
        """Target minus prediction, over the prediction, on held-out rows; for models that predict numbers."""
        truth, prediction = EvaluatedRows(self.ensemble, data, target).numbers()
        name = target if isinstance(target, str) else "the target"
        return quality.draw_residuals(truth, prediction, name, ax)

    def report(self, path: str | os.PathLike[str], data: Any = None, target: Any = None, sample_weight: Any = None) -> None:
        """Write one self-contained HTML page: what the model is, how it was trained, how good it is, what matters and how.

        Parameters
        ----------
        path : path or URL
            Written whole or not at all, over an older one if there is one.
        data : as in `predict`, optional
            Rows, best held-out ones, on which Shapley values, dependence and interactions are shown (2000 of them, evenly
            spaced). Without, importance and dependence are told by the trees.
        target : as in `dboost.fit`, optional
            The rows' target, for metrics, calibration and lift, or residuals.
        sample_weight : name of a column, or one number per row of data in memory, optional
            What the rows count for, in metrics, calibration, lift, dependence and interactions.

        Raises
        ------
        ParameterError
            A target or weights without data.
        DataError, ModelFileError
            As of `predict` and of `save`.
        """
        page.write(self, path, data, target, sample_weight)

    def _repr_html_(self) -> str:
        return card.card(self)

    def _output(self, output: Any) -> int:
        names = class_names(self.ensemble)
        if output is None:
            return len(names) - 1
        if output not in names:
            raise ParameterError(f"output={output!r} is none of {', '.join(map(repr, names))}")
        return names.index(output)

    def _attributions(self, block: np.ndarray, output: Any, background: Any) -> tuple[np.ndarray, str]:
        """Shapley values of a block for one output, and what they are measured in."""
        k = self._output(output)
        rows = None if background is None else sample(background, self.ensemble, np.iinfo(np.int64).max)[1].block
        values = shapley.Shapley(self.ensemble, rows, False, None)(block)
        of_class = f" of {class_names(self.ensemble)[k]}" if self.ensemble.n_outputs > 1 else ""
        return values if values.ndim == 2 else values[:, :, k], score_name(self.ensemble, "raw", False) + of_class


def score_name(ensemble: Ensemble, scale: str, centred: bool) -> str:
    """What a value axis measures."""
    loss = losses.from_dict(ensemble.loss)
    if scale == "prediction":
        second = "" if ensemble.n_outputs > 1 else f" of {class_names(ensemble)[0]}"
        name = f"probability{second}" if loss.is_classification else "prediction"
    elif loss.is_classification:
        name = "raw score" if ensemble.n_outputs > 1 else f"log odds of {class_names(ensemble)[0]}"
        name = f"raw score of {class_names(ensemble)[0]}" if loss.name == "exponential" else name
    else:
        is_number = np.array_equal(loss.inverse_link(np.array([0.25, 2.0])), [0.25, 2.0])
        name = "prediction" if is_number else "raw score (logarithm of the prediction)"
    return f"{name}, centred" if centred else name


def _at_least_one(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ParameterError(f"{name}={value!r} must be an integer of at least 1")
    return int(value)
