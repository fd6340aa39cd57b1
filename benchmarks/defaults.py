"""The libraries as they are without tuning: at their own defaults, or with a number of iterations that held-out rows decide.

Of the defaults only the number of threads is set, and that XGBoost takes pandas categories as such. ``-stopping`` is what a
user of LightGBM, XGBoost and scikit-learn writes who tunes nothing else: a tenth of the rows held out, a learning rate of 0.05,
and at most 2,000 iterations, which end when 50 have not improved the loss of these rows.

CatBoost and ChimeraBoost must be installed by hand: ``pip install catboost chimeraboost``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

    Features = np.ndarray | pd.DataFrame
    #: From features to raw scores.
    RawScore = Callable[[Features], Any]

LEARNING_RATE, MOST_ITERATIONS, PATIENCE, HELD_OUT = 0.05, 2000, 50, 0.1
#: dboost at its defaults, and where rows that are held out decide on the number of iterations: keywords of `dboost.fit`.
DBOOST: dict[str, dict[str, Any]] = {
    "dboost": {},
    "dboost-auto": {"max_iter": "auto"},
    "dboost-one-fit": {"max_iter": "auto", "refit": False},
}


def fit_dboost(engine: str, X: Features, y: np.ndarray, n_classes: int, threads: int) -> RawScore:
    import dboost

    loss = "log_loss" if n_classes else "squared_error"
    booster = dboost.fit(X, y, loss=loss, n_threads=threads, progress=False, **DBOOST[engine])
    return lambda X: booster.predict(X, raw_score=True)


def fit_lightgbm(engine: str, X: Features, y: np.ndarray, n_classes: int, threads: int) -> RawScore:
    from lightgbm import LGBMClassifier, LGBMRegressor, early_stopping

    kind = LGBMClassifier if n_classes else LGBMRegressor
    if engine == "lightgbm":
        model = kind(n_jobs=threads, verbose=-1).fit(X, y)
    else:
        train, train_y, held_out, held_out_y = _divided(X, y, n_classes)
        model = kind(n_estimators=MOST_ITERATIONS, learning_rate=LEARNING_RATE, n_jobs=threads, verbose=-1)
        model.fit(train, train_y, eval_X=held_out, eval_y=held_out_y, callbacks=[early_stopping(PATIENCE, verbose=False)])
    return lambda X: model.predict(X, raw_score=True)


def fit_xgboost(engine: str, X: Features, y: np.ndarray, n_classes: int, threads: int) -> RawScore:
    from xgboost import XGBClassifier, XGBRegressor

    kind = XGBClassifier if n_classes else XGBRegressor
    if engine == "xgboost":
        model = kind(n_jobs=threads, enable_categorical=True).fit(X, y)
    else:
        train, train_y, held_out, held_out_y = _divided(X, y, n_classes)
        stopping = {"n_estimators": MOST_ITERATIONS, "learning_rate": LEARNING_RATE, "early_stopping_rounds": PATIENCE}
        model = kind(n_jobs=threads, enable_categorical=True, **stopping)
        model.fit(train, train_y, eval_set=[(held_out, held_out_y)], verbose=False)
    return lambda X: model.predict(X, output_margin=True)


def fit_sklearn(engine: str, X: Features, y: np.ndarray, n_classes: int, threads: int) -> RawScore:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    stopping: dict[str, Any] = {}
    if engine == "sklearn-stopping":
        stopping = {"max_iter": MOST_ITERATIONS, "learning_rate": LEARNING_RATE, "early_stopping": True}
        stopping |= {"n_iter_no_change": PATIENCE, "validation_fraction": HELD_OUT, "random_state": 0}
    with threadpool_limits(threads, user_api="openmp"):
        model = (HistGradientBoostingClassifier if n_classes else HistGradientBoostingRegressor)(**stopping).fit(X, y)
    return model.decision_function if n_classes else model.predict


def fit_catboost(engine: str, X: Features, y: np.ndarray, n_classes: int, threads: int) -> RawScore:
    from catboost import CatBoostClassifier, CatBoostRegressor

    kind = CatBoostClassifier if n_classes else CatBoostRegressor
    names = _categorical(X)
    model = kind(thread_count=threads, verbose=False, allow_writing_files=False, cat_features=names or None)
    model.fit(_as_texts(X, names), y)
    return lambda X: model.predict(_as_texts(X, names), prediction_type="RawFormulaVal")


def fit_chimeraboost(engine: str, X: Features, y: np.ndarray, n_classes: int, threads: int) -> RawScore:
    from chimeraboost import ChimeraBoostClassifier, ChimeraBoostRegressor

    names = _categorical(X)
    model = (ChimeraBoostClassifier if n_classes else ChimeraBoostRegressor)(thread_count=threads, random_state=0)
    model.fit(_as_texts(X, names), y, cat_features=names or None)
    if not n_classes:
        return lambda X: model.predict(_as_texts(X, names))

    def raw_score(X: Features) -> np.ndarray:
        logarithms = np.log(np.clip(model.predict_proba(_as_texts(X, names)), 1e-15, 1))
        return logarithms if n_classes > 2 else logarithms[:, 1] - logarithms[:, 0]

    return raw_score


#: What is compared without tuning only, not at equal settings.
WITHOUT_TUNING: dict[str, Callable[..., RawScore]] = {
    "dboost-auto": fit_dboost,
    "dboost-one-fit": fit_dboost,
    "lightgbm-stopping": fit_lightgbm,
    "xgboost-stopping": fit_xgboost,
    "sklearn-stopping": fit_sklearn,
    "catboost": fit_catboost,
    "chimeraboost": fit_chimeraboost,
}
ENGINES: dict[str, Callable[..., RawScore]] = {
    "dboost": fit_dboost,
    "lightgbm": fit_lightgbm,
    "xgboost": fit_xgboost,
    "sklearn": fit_sklearn,
    **WITHOUT_TUNING,
}


def raw_score_without_tuning(engine: str, X: Features, y: np.ndarray, n_classes: int, threads: int) -> RawScore:
    """Fit a library without tuning (its scikit-learn estimator, or `dboost.fit`); return the function of raw scores."""
    if engine not in ENGINES:
        raise ValueError(f"{engine} has no defaults of its own")
    return ENGINES[engine](engine, X, y, n_classes, threads)


def _divided(X: Features, y: np.ndarray, n_classes: int) -> Any:
    """Return the rows to train on and their targets, and those that are held out; of each class its share."""
    from sklearn.model_selection import train_test_split

    train, held_out, train_y, held_out_y = train_test_split(
        X, y, test_size=HELD_OUT, random_state=0, stratify=y if n_classes else None
    )
    return train, train_y, held_out, held_out_y


def _categorical(X: Features) -> list[str]:
    return [] if isinstance(X, np.ndarray) else [name for name in X if X[name].dtype.kind not in "fiub"]


def _as_texts(X: Features, names: list[str]) -> Features:
    """Return features whose categories are texts, none of them missing."""
    return X.assign(**{name: X[name].astype(object).fillna("missing").astype(str) for name in names}) if names else X
