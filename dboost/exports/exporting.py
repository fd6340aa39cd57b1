"""What a `Booster` can do to be read by others."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dboost.exports.columns import as_numbers
from dboost.losses import Loss
from dboost.model import files
from dboost.model.ensemble import Ensemble
from dboost.sources import predict_through

if TYPE_CHECKING:
    import treelite


class Exporting:
    """The part of `Booster` that writes formats of others."""

    ensemble: Ensemble

    if TYPE_CHECKING:

        @property
        def loss(self) -> Loss: ...

    def to_matrix(self, X: Any) -> Any:
        """The rows as exported models read them: numbers, NaN where missing.

        Levels of a categorical feature that are whole numbers from 0 to 16,777,215 (or truth values) stand for themselves;
        other levels are given by their position in the feature's `levels`. Levels that the model does not know are NaN.

        Parameters
        ----------
        X : as in `predict`

        Returns
        -------
        Array [n_rows, n_features] of float64 for arrays and lists; a frame for frames; lazy for Dask
            XGBoost and ONNX round it to float32.
        """
        features = self.ensemble.features
        names = [feature.name for feature in features]
        ask = partial(as_numbers, features=features)
        return predict_through(X, ask, features=features, named=self.ensemble.named, names=names, dtype=np.float64)

    def to_xgboost_json(self, path: str | os.PathLike[str]) -> None:
        """Write the model as XGBoost's JSON, to be read by ``xgboost.Booster(model_file=path)``.

        The rows that it takes are those of `to_matrix`. Thresholds, leaves and sums are float32 there, so predictions agree to
        float32 rounding; a float32 value stands for all float64 values that round to it. With the exponential loss the margin
        is twice our raw score.

        Parameters
        ----------
        path : path or URL

        Raises
        ------
        ParameterError
            When the loss is one of the user's own with a link that XGBoost does not know.
        ModelFileError
            When the file cannot be written.
        """
        from dboost.exports import xgboost_json

        files.write_whole(path, xgboost_json.dumps(self.ensemble, self.loss))

    def to_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the model as an ONNX graph, which onnxruntime runs.

        It has one input, ``features`` (float32 [rows, features], see `to_matrix`). Regressors have one output, ``prediction``
        (float32 [rows]); classifiers have ``label`` and then ``probabilities`` (float32 [rows, classes]). Sums are float64
        inside, so predictions agree to float32 rounding.

        Parameters
        ----------
        path : path or URL

        Raises
        ------
        DBoostError
            When onnx is not installed (``pip install 'dboost[export]'``).
        ParameterError
            When the loss is one of the user's own with a link that the format does not know.
        ModelFileError
            When the file cannot be written.
        """
        from dboost.exports import onnx_graph

        files.write_whole(path, onnx_graph.to_onnx(self.ensemble, self.loss).SerializeToString())

    def to_treelite(self) -> treelite.Model:
        """The model as a `treelite.Model`, to be compiled or served by what reads those.

        The rows that it takes are those of `to_matrix`. Thresholds and leaves are float64, as ours.

        Raises
        ------
        DBoostError
            When treelite is not installed (``pip install 'dboost[export]'``).
        ParameterError
            When the loss is one of the user's own with a link that treelite does not know.
        """
        from dboost.exports import treelite_model

        return treelite_model.to_treelite(self.ensemble, self.loss)
