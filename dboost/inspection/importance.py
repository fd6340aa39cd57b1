"""Which features did the work, read off the trees.

**Friedman's relative importance** (44), (45): the squared importance of a feature in one tree is the sum, over the
splits on it, of what each split took off the squared error of the tree's response; over an ensemble it is the mean
over the trees, and what is reported is its root,

    I_j = sqrt( 1/M  Σ_m  Σ_{splits t of tree m on j}  i_t² ).

The response here is that of second-order boosting, -g/h with weight h, so i_t² is twice the gain of the split; for the
squared error that is the paper's w_l w_r / (w_l + w_r) (mean_l - mean_r)². With K classes each class has trees, and
importances I_jk, of its own (49); a feature's importance is their mean over the classes.

**Gain** is the same sum without the root: what the splits on the feature took off the loss (net of the leaf penalty).
**Cover** adds up the Hessians of the rows that the splits looked at, **count** is the number of splits.

All are relative: the largest is 100. What 100 stands for is in ``attrs["unit"]``.
"""

from __future__ import annotations

import numpy as np

from dboost._lazy_import import pd
from dboost.errors import ParameterError
from dboost.inspection.feature_names import class_names
from dboost.model.ensemble import Ensemble

KINDS = ("friedman", "gain", "cover", "count")


def importance(ensemble: Ensemble, kind: str = "friedman", per_class: bool = False) -> pd.Series | pd.DataFrame:
    """Relative importance of the features.

    Parameters
    ----------
    ensemble : Ensemble
    kind : "friedman", "gain", "cover" or "count"
    per_class : bool
        One column per class (of two classes the second one has the only column), each with its own 100.

    Returns
    -------
    Series of float64 by feature, or DataFrame features × classes
        Largest (mean) first; equal ones in the order of the features. All zero when no tree has a split.

    Raises
    ------
    ParameterError
        For an unknown kind, and for classes of a model that predicts numbers.
    """
    if kind not in KINDS:
        raise ParameterError(f"kind={kind!r} must be one of {', '.join(map(repr, KINDS))}, or 'permutation'")
    if per_class and ensemble.classes is None:
        raise ParameterError("there is no importance per class: the model predicts numbers")
    total = _totals(ensemble, kind)
    if kind == "friedman":
        total = np.sqrt(2.0 * np.maximum(total, 0.0) / max(1, ensemble.n_iterations))
    mean = total.mean(axis=1) if kind == "friedman" else total.sum(axis=1)
    names = [feature.name for feature in ensemble.features]
    order = np.argsort(-mean, kind="stable")
    if per_class:
        units = total.max(axis=0)
        table = pd.DataFrame(_relative(total), index=names, columns=class_names(ensemble)).iloc[order]
        table.attrs = {"kind": kind, "unit": units.tolist()}
        return table.rename_axis(index="feature", columns="class")
    return ranked(mean, names, kind)


def ranked(values: np.ndarray, names: list[str], kind: str) -> pd.Series:
    """Values by feature as a Series, largest first and 100 at the top."""
    order = np.argsort(-values, kind="stable")
    series = pd.Series(_relative(values[:, None])[:, 0], index=pd.Index(names, name="feature"), name="importance")
    series = series.iloc[order]
    series.attrs = {"kind": kind, "unit": float(values.max(initial=0.0))}
    return series


def _relative(values: np.ndarray) -> np.ndarray:
    """Columns in percent of their largest value; a column without a positive value is left as it is."""
    top = values.max(axis=0, initial=0.0)
    return np.where(top > 0, 100.0 * (values / np.where(top > 0, top, 1.0)), values)


def _totals(ensemble: Ensemble, kind: str) -> np.ndarray:
    """Sums over the splits on each feature: float64[n_features, n_outputs]."""
    totals = np.zeros((len(ensemble.features), ensemble.n_outputs))
    for t, tree in enumerate(ensemble.trees):
        split = np.flatnonzero(tree.feature >= 0)
        amount = {"friedman": tree.gain, "gain": tree.gain, "cover": tree.cover, "count": None}[kind]
        of_split = np.ones(len(split)) if amount is None else amount[split]
        totals[:, t % ensemble.n_outputs] += np.bincount(tree.feature[split], of_split, len(ensemble.features))
    return totals
