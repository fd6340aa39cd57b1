"""Models that come from elsewhere: from our own files, and from XGBoost and LightGBM, to predict with and to continue."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from dboost.booster import Booster
from dboost.errors import InputTypeError, ParameterError
from dboost.losses import Loss
from dboost.model import storage
from dboost.schema import Level


def load(path: str | os.PathLike[str], loss: Loss | None = None) -> Booster:
    """Read a model from its file, in either form. Nothing in the file is run.

    Parameters
    ----------
    path : path or URL
    loss : Loss, optional
        The loss of your own that the model was trained with, if it is not registered (see `dboost.losses.register`).

    Raises
    ------
    ModelFileError
        Naming the file: it does not exist, is damaged or cut short, or was written by a newer dboost.
    ParameterError
        When the model was trained with another loss than the one given.
    """
    ensemble = storage.load(path)
    if loss is not None and loss.name != ensemble.loss["name"]:
        raise ParameterError(
            f"the model in {os.fspath(path)} was trained with loss {ensemble.loss['name']!r}, not {loss.name!r}"
        )
    return Booster(ensemble, loss=loss)


def from_xgboost(model: Any, levels: dict[str, Sequence[Level] | int] | None = None) -> Booster:
    """A model of XGBoost as a Booster that predicts the same.

    Trees and DART models of one target with the objectives reg:squarederror, reg:absoluteerror, reg:quantileerror,
    reg:pseudohubererror (continued as huber), count:poisson, reg:gamma, reg:tweedie, binary:logistic, binary:logitraw,
    multi:softprob and multi:softmax. Predictions agree to the rounding of XGBoost's float32 sums. Classes are the numbers
    0, 1, ….

    Parameters
    ----------
    model : xgboost.Booster, estimator of xgboost, or path or URL of a model file
        JSON is read without XGBoost; a binary file (UBJ) needs it installed.
    levels : dict of column names (f0, f1, … where there are none), optional
        The levels of categorical columns in the order of their codes, or their number if they are the codes themselves.
        Needed where the model does not keep them (before XGBoost 3.1, and for matrices).

    Raises
    ------
    ParameterError
        Naming what cannot be carried: other boosters, objectives or several targets; or the column whose levels are needed.
    ModelFileError
        Naming the file that is not there or not a model.
    """
    from dboost.imports import xgboost_models

    return Booster(xgboost_models.from_xgboost(model, dict(levels or {})))


def from_lightgbm(model: Any, levels: dict[str, Sequence[Level] | int] | None = None) -> Booster:
    """A model of LightGBM as a Booster that predicts the same.

    Models of gbdt, dart, goss and rf with the objectives regression, regression_l1, quantile, huber, poisson, gamma, tweedie,
    binary and multiclass. Predictions agree to the rounding of float64. Classes are the numbers 0, 1, ….

    Parameters
    ----------
    model : lightgbm.Booster, estimator of lightgbm, or path or URL of a model file in text
    levels : dict of column names (f0, f1, … where there are none), optional
        The levels of categorical columns in the order of their codes, or their number if they are the codes themselves.
        Needed where some categorical columns were pandas categories and others numbers.

    Raises
    ------
    ParameterError
        Naming what cannot be carried: linear trees, other objectives, zeros as missing; or the columns whose levels are needed.
    ModelFileError
        Naming the file that is not there or not a model.
    """
    from dboost.imports import lightgbm_models

    return Booster(lightgbm_models.from_lightgbm(model, dict(levels or {})))


def as_booster(model: Any) -> Booster:
    """A model as it is, or from its file.

    Raises
    ------
    InputTypeError
        When it is neither.
    ModelFileError
        Naming the file that cannot be read.
    """
    if isinstance(model, Booster):
        return model
    if isinstance(model, str | os.PathLike):
        return load(model)
    raise InputTypeError(f"start_from must be a Booster, or the path or URL of its file, not {type(model).__name__}")
