"""Rows with a known target and the model's raw scores: input of metrics, calibration, lift and residuals."""

from __future__ import annotations

from typing import Any

import numpy as np

from dboost import losses
from dboost.data import open_table
from dboost.errors import ParameterError
from dboost.metrics.metric import LossMagnitude, ScoredRows, find_metrics
from dboost.model.ensemble import Ensemble
from dboost.model.forest import FlatEnsemble
from dboost.session.target import Target, encode_like
from dboost.session.warm_start import row_matrices


class EvaluatedRows:
    """Targets, raw scores and weights of a table's rows.

    Parameters
    ----------
    ensemble : Ensemble
    data, target, sample_weight : as in `dboost.fit`

    Attributes
    ----------
    target : float64[n]
        Numbers, or codes of classes.
    raw : float64[n, n_outputs]
    weight : float64[n] or None
    """

    def __init__(self, ensemble: Ensemble, data: Any, target: Any, sample_weight: Any = None) -> None:
        self._ensemble = ensemble
        self._loss = losses.from_dict(ensemble.loss)
        with open_table(data, target, sample_weight=sample_weight, like=ensemble.features) as table:
            known = Target(self._loss, np.empty(0), ensemble.classes, ensemble.classes_dtype)
            self.target = encode_like(table, known)
            self.weight = table.weight
            flat = FlatEnsemble(ensemble)
            self.raw = np.concatenate([flat.raw_scores(block) for block in row_matrices(table, None)])

    def of_class(self, wanted: Any = None) -> tuple[np.ndarray, np.ndarray, Any]:
        """Return whether rows belong to a class (bool[n]), its predicted probability (float64[n]) and its name.

        Raises
        ------
        ParameterError
            For an unknown class or a regression model.
        """
        classes = self._ensemble.classes
        if classes is None:
            raise ParameterError("there are no probabilities: the model predicts numbers")
        if wanted is not None and wanted not in classes:
            raise ParameterError(f"output={wanted!r} is none of {', '.join(map(repr, classes))}")
        k = len(classes) - 1 if wanted is None else classes.index(wanted)
        if self._ensemble.n_outputs > 1:
            probability = self._loss.inverse_link(self.raw)[:, k]
        else:
            second = self._loss.inverse_link(self.raw[:, 0])
            probability = second if k else 1.0 - second
        return self.target == k, probability, classes[k]

    def numbers(self) -> tuple[np.ndarray, np.ndarray]:
        """Return targets and predictions of a regression model.

        Raises
        ------
        ParameterError
            For a classification model.
        """
        if self._ensemble.classes is not None:
            raise ParameterError("there are no residuals: the model predicts classes")
        return self.target, self._loss.inverse_link(self.raw[:, 0])

    def metrics(self) -> dict[str, float]:
        """Return the metrics that apply to the loss, by name."""
        names = [self._loss.name, *_MORE_METRICS]
        raw = self.raw if self.raw.shape[1] > 1 else self.raw[:, 0]
        per_row = np.abs(self._loss.value(self.target, raw))
        spread = max(1.0, float(np.abs(self.target - self.target.mean()).max()))
        max_weight = 1.0 if self.weight is None else float(self.weight.max())
        size = LossMagnitude(float(per_row.max(initial=0.0)) or 1.0, spread, max_weight, len(self.target))
        found = {}
        for name in names:
            try:
                metric = find_metrics(name, self._loss)[0]
            except ParameterError:
                continue
            found[name] = metric.finish(metric.chunk(ScoredRows(self.target, raw, self.weight, self._loss, size)))
        return found


_MORE_METRICS = ("accuracy", "roc_auc", "brier_score", "mean_absolute_error", "root_mean_squared_error")
