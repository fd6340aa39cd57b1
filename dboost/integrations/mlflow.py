"""MLflow: automatic logging of fits, and models that MLflow stores, loads and serves.

`autolog` observes all fits of this process: those of `dboost.fit` and of the estimators, in this process or on a cluster (the
client's process logs). The model file is that of `Booster.save`, so loading a model executes nothing that it contains. The
*pyfunc* flavour makes it a model of ``mlflow models serve``, ``mlflow.pyfunc.load_model`` and Spark.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np

from dboost._lazy_import import pd
from dboost.booster import Booster, booster_with, load
from dboost.display import as_read
from dboost.errors import InputTypeError, MissingExtraError, ParameterError
from dboost.files.path_text import path_text
from dboost.tracebacks import short_traceback
from dboost.training.callbacks import Iteration
from dboost.training.fit import OBSERVERS, FitResult
from dboost.training.history import metrics_of
from dboost.training.plan import FitPlan
from dboost.version import __version__

try:
    import mlflow
    from mlflow.entities import Metric
    from mlflow.models import Model, ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema, TensorSpec
    from mlflow.types.schema import AnyType
except ImportError as error:
    raise MissingExtraError("mlflow is not installed; it comes with the extra: pip install 'dboost[mlflow]'") from error

_log = logging.getLogger("dboost")

FLAVOR_NAME = "dboost"
#: Name of the model's file.
_FILE = "model.dboost"
#: Methods of a served model.
METHODS = ("predict", "predict_proba", "raw_score")
#: MLflow's limits of a batch of metrics and of a parameter's value, and seconds between two batches.
_MAX_METRICS, _MAX_LENGTH, _SECONDS = 1000, 6000, 1.0


# Models.


@short_traceback
def save_model(
    booster: Booster,
    path: str | os.PathLike[str],
    *,
    signature: ModelSignature | None = None,
    input_example: Any = None,
    pip_requirements: list[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    mlflow_model: Model | None = None,
) -> None:
    """Save a model as an MLflow model in a local folder.

    Parameters
    ----------
    booster : Booster, DBoostRegressor or DBoostClassifier
    path : path
        A folder that does not exist or is empty.
    signature : mlflow.models.ModelSignature, optional
        Default: the features and the prediction of the model (see `signature_of`).
    input_example : frame or array, optional
        Rows to store with the model.
    pip_requirements : list of str, optional
        What a server installs. Default: the versions of dboost and mlflow in this process.
    metadata : mapping, optional
        Stored with the model.
    mlflow_model : mlflow.models.Model, optional
        The model that the flavour is added to; MLflow gives it.

    Raises
    ------
    InputTypeError
        For another model.
    """
    booster = _booster_of(booster)
    mlflow_model = Model() if mlflow_model is None else mlflow_model
    if metadata is not None:
        mlflow_model.metadata = dict(metadata)
    mlflow_model.add_flavor(FLAVOR_NAME, dboost_version=__version__, data=f"data/{_FILE}", sha256=booster.sha256)
    if pip_requirements is None:
        pip_requirements = [f"dboost=={__version__}", f"mlflow=={mlflow.__version__}"]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # The signature is computed from the model and needs no example, which would be rows of the data.
        warnings.filterwarnings("ignore", message=".*An input example was not provided", category=UserWarning)
        data = Path(folder) / _FILE
        booster.save(data)
        mlflow.pyfunc.save_model(
            path=path_text(path),
            loader_module=__name__,
            data_path=str(data),
            signature=signature_of(booster) if signature is None else signature,
            input_example=input_example,
            pip_requirements=pip_requirements,
            mlflow_model=mlflow_model,
        )


@short_traceback
def log_model(booster: Booster, name: str = "model", *, registered_model_name: str | None = None, **options: Any) -> Any:
    """Log a model to the active run of MLflow, or to a new one.

    Parameters
    ----------
    booster : Booster, DBoostRegressor or DBoostClassifier
    name : str, default "model"
    registered_model_name : str, optional
        Also register a version of the model under this name.
    **options
        As in `save_model`; others as in ``mlflow.models.Model.log`` (`step`, `tags`, `params`, `run_id`).

    Returns
    -------
    mlflow.models.model.ModelInfo
        Its `model_uri` is what `load_model` and ``mlflow models serve`` read.

    Examples
    --------
    >>> info = dboost.integrations.mlflow.log_model(booster, registered_model_name="churn")     # doctest: +SKIP
    """
    options |= {
        "flavor": sys.modules[__name__],
        "booster": _booster_of(booster),
        "registered_model_name": registered_model_name,
    }
    return Model.log(artifact_path=None, name=name, **options)


@short_traceback
def load_model(model_uri: str) -> Booster:
    """Load a model that `log_model` or `save_model` wrote.

    Parameters
    ----------
    model_uri : str
        Such as "runs:/<run>/model", "models:/<name>/<version>", or a local folder.

    Returns
    -------
    Booster
    """
    folder = mlflow.artifacts.download_artifacts(artifact_uri=path_text(model_uri))
    flavors = Model.load(folder).flavors
    if FLAVOR_NAME not in flavors:
        raise ParameterError(f"{model_uri} is no model of dboost: its flavours are {', '.join(sorted(flavors))}")
    return load(os.path.join(folder, flavors[FLAVOR_NAME]["data"]))


def signature_of(booster: Booster) -> ModelSignature:
    """Return the signature of a model: its features, its prediction, and the parameter "method" of a served model.

    A feature that had fractions in training has the type double: its column held floats. All others have the type Any, so that
    MLflow hands on the columns that the model was trained on: it accepts integers only as long and floats only as double, while
    a feature may come as either, and columns of pandas categories as no other type. The model itself checks the columns. A
    model of an array has a tensor as input.
    """
    inputs = Schema([TensorSpec(np.dtype(np.float64), (-1, booster.n_features_in_))])
    if booster.ensemble.named:
        edges = booster.ensemble.edges or (None,) * booster.n_features_in_
        typed = zip(booster.features, edges, strict=True)
        inputs = Schema([ColSpec("double" if _has_fractions(cuts) else AnyType(), feature.name) for feature, cuts in typed])
    kind = "double" if booster.classes_ is None else _OUTPUT_TYPES.get(booster.classes_.dtype.kind, "string")
    params = ParamSchema([ParamSpec("method", "string", METHODS[0])])
    return ModelSignature(inputs, Schema([ColSpec(kind, "prediction")]), params)


#: MLflow's types by the kind of NumPy's dtype of classes.
_OUTPUT_TYPES = {"b": "boolean", "i": "long", "u": "long", "f": "double"}


def _has_fractions(edges: np.ndarray | None) -> bool:
    """Whether a feature with these edges of bins had fractions: the middle of two integers is a multiple of one half."""
    return edges is not None and not np.array_equal(2 * edges, np.round(2 * edges))


def _booster_of(model: Any) -> Booster:
    booster = getattr(model, "booster_", model)
    if not isinstance(booster, Booster):
        raise InputTypeError(f"the model must be a Booster or a fitted estimator of dboost, not {type(model).__name__}")
    return booster


class ServedModel:
    """The model behind MLflow's *pyfunc* flavour.

    Parameters
    ----------
    booster : Booster
    """

    def __init__(self, booster: Booster) -> None:
        self.booster = booster

    def predict(self, data: Any, params: Mapping[str, Any] | None = None) -> Any:
        """Predict.

        Parameters
        ----------
        data : DataFrame or array
        params : mapping, optional
            "method": "predict" (default), "predict_proba" or "raw_score".

        Returns
        -------
        Series, or DataFrame with one column per class
        """
        method = (params or {}).get("method", METHODS[0])
        if method not in METHODS:
            raise ParameterError(f"method={method!r} must be one of {', '.join(map(repr, METHODS))}")
        index = getattr(data, "index", None)
        if not self.booster.ensemble.named:
            data = np.asarray(data, np.float64)
        if method == "predict_proba":
            predictions = self.booster.predict_proba(data)
        else:
            predictions = self.booster.predict(data, raw_score=method == "raw_score")
        values = np.asarray(predictions)
        if values.ndim == 1:
            return pd.Series(values, index, name="prediction")
        return pd.DataFrame(values, index, self.booster.outputs.columns)


def _load_pyfunc(path: str) -> ServedModel:
    """Return the model in the file that MLflow stored; MLflow calls it."""
    return ServedModel(load(path))


# Automatic logging.


@short_traceback
def autolog(
    *,
    disable: bool = False,
    log_models: bool = True,
    registered_model_name: str | None = None,
    extra_tags: Mapping[str, str] | None = None,
) -> None:
    """Log every following fit of this process to MLflow: parameters, metrics of each iteration, and the model.

    A fit is logged to the active run if it is the first one in it, else to a new run, which is nested in the active one. Errors
    of MLflow become warnings: they never end a fit.

    Parameters
    ----------
    disable : bool, default False
        Stop logging.
    log_models : bool, default True
        Log the model, with a signature.
    registered_model_name : str, optional
        Also register each model as a version under this name.
    extra_tags : mapping of str to str, optional
        Tags of the runs.

    Notes
    -----
    Parameters are those of `dboost.fit` that shape the model, and the numbers of rows and features. Metrics are the columns of
    `Booster.history` ("@" is replaced by "_at_"), at the end also ``best_iteration``.

    Examples
    --------
    >>> dboost.integrations.mlflow.autolog()                                     # doctest: +SKIP
    >>> booster = dboost.fit(frame, "y", eval_set=test)                          # doctest: +SKIP
    """
    if registered_model_name is not None and not log_models:
        raise ParameterError(f"registered_model_name={registered_model_name!r} needs log_models=True")
    OBSERVERS[:] = [make for make in OBSERVERS if not isinstance(make, _Autolog)]
    if not disable:
        OBSERVERS.append(_Autolog(log_models, registered_model_name, dict(extra_tags or {})))


class _Autolog:
    """Makes an observer of a fit."""

    def __init__(self, log_models: bool, registered_model_name: str | None, tags: dict[str, str]) -> None:
        self.log_models, self.registered_model_name, self.tags = log_models, registered_model_name, tags
        self.used_runs: set[str] = set()

    def __call__(self, plan: FitPlan) -> _LoggedFit:
        return _LoggedFit(self, plan)


def _warns(method: Callable[..., None]) -> Callable[..., None]:
    """Turn errors of a method into warnings; after one, the fit is not logged any more."""

    @wraps(method)
    def safe(self: _LoggedFit, *arguments: Any) -> None:
        if self.is_broken:
            return
        try:
            method(self, *arguments)
        except Exception as error:
            self.is_broken = True
            _log.warning("MLflow does not log this fit any more: %s: %s", type(error).__name__, error)

    return safe


class _LoggedFit:
    """Logs a fit to a run of MLflow; see `dboost.training.fit.FitObserver`."""

    def __init__(self, settings: _Autolog, plan: FitPlan) -> None:
        self._settings, self._plan = settings, plan
        self._metrics: list[Metric] = []
        self._sent = time.monotonic()
        self._run: Any = None
        self._is_own_run = False
        self.is_broken = False
        self._begin()

    @_warns
    def _begin(self) -> None:
        active, plan = mlflow.active_run(), self._plan
        self._run = active
        if active is None or active.info.run_id in self._settings.used_runs:
            self._run = mlflow.start_run(nested=active is not None)
            self._is_own_run = True
        self._settings.used_runs.add(self._run.info.run_id)
        mlflow.set_tags({"mlflow.autologging": FLAVOR_NAME, "dboost.version": __version__} | self._settings.tags)
        parameters: dict[str, Any] = plan.parameters.to_dict() | {
            "n_rows": plan.n_rows,
            "n_features": len(plan.binning.features),
            "source_name": plan.request.source_name,
        }
        mlflow.log_params({name: str(value)[:_MAX_LENGTH] for name, value in parameters.items() if value is not None})

    @_warns
    def __call__(self, iteration: Iteration) -> None:
        now = int(time.time() * 1000)
        recorded = {name: values[0] for name, values in metrics_of([iteration.record]).items()}
        values = recorded | dict(as_read(name, value, self._plan.target.loss.name) for name, value in recorded.items())
        if "learning_rate" in iteration.record:
            values["learning_rate"] = iteration.record["learning_rate"]
        self._metrics += [Metric(_legal(name), float(value), now, iteration.iteration) for name, value in values.items()]
        if time.monotonic() - self._sent > _SECONDS or len(self._metrics) >= _MAX_METRICS:
            self._send()

    def _send(self) -> None:
        client, run_id = mlflow.MlflowClient(), self._run.info.run_id
        for first in range(0, len(self._metrics), _MAX_METRICS):
            client.log_batch(run_id, metrics=self._metrics[first : first + _MAX_METRICS])
        self._metrics, self._sent = [], time.monotonic()

    def end(self, result: FitResult | None) -> None:
        """Log the model and end the run. result : None if the fit failed."""
        self._finish(result)
        if self._is_own_run:
            status = "FAILED" if result is None else "FINISHED"
            try:
                mlflow.MlflowClient().set_terminated(self._run.info.run_id, status)
                mlflow.end_run(status)
            except Exception as error:
                _log.warning("MLflow does not end the run of this fit: %s: %s", type(error).__name__, error)

    @_warns
    def _finish(self, result: FitResult | None) -> None:
        self._send()
        if result is None:
            return
        ensemble = result.ensemble
        if ensemble.best_iteration is not None:
            mlflow.log_metric("best_iteration", ensemble.best_iteration)
        if self._settings.log_models:
            loss = self._plan.request.parameters.loss
            booster = booster_with(ensemble, history=result.history, loss=None if isinstance(loss, str) else loss)
            log_model(booster, registered_model_name=self._settings.registered_model_name)


def _legal(name: str) -> str:
    """Return the name of a metric with the characters that MLflow accepts."""
    kept = "".join(c if c.isalnum() or c in "_-. :/@" else "_" for c in name)
    return kept.replace("@", "_at_")
