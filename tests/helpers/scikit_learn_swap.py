"""A pytest plugin that runs scikit-learn's tests of HistGradientBoosting with the estimators of dboost.

`pytest -p tests.helpers.scikit_learn_swap --pyargs sklearn.ensemble…` replaces the two classes in `sklearn.ensemble` before the
tests import them. The replacements are dboost's estimators with scikit-learn's defaults where dboost's differ on purpose, and
with views of the model under the private names that these tests read. A view shows the model and computes nothing else.

With ``SWAP_OUTCOMES=file`` the plugin writes ``{file::test: [outcome, number of estimators made, message]}`` as JSON.
"""

from __future__ import annotations

import inspect
import json
import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sklearn.ensemble

from dboost import DBoostClassifier, DBoostRegressor
from dboost.params import make_parameters
from dboost.training.callbacks import StoppingRule
from dboost.training.feature_constraints import interaction_groups

#: scikit-learn's values of parameters whose defaults differ on purpose (`docs/migration/scikit_learn.md`).
DEFAULTS = {"l2_regularization": 0.0, "min_hessian": 1e-3}

_made = 0
_outcomes: dict[str, tuple[str, int, str]] = {}


class _Predictor:
    """One tree, as scikit-learn's `TreePredictor` shows it."""

    def __init__(self, nodes: Any) -> None:
        self._frame = nodes
        is_leaf = nodes["feature"].isna().to_numpy()
        self.nodes = np.rec.fromarrays(
            [is_leaf, nodes["depth"], nodes["threshold"].fillna(0.0), nodes["value"].where(is_leaf, 0.0), nodes["count"]],
            names="is_leaf,depth,num_threshold,value,count",
        )

    def get_max_depth(self) -> int:
        return int(self.nodes["depth"].max())

    def get_n_leaf_nodes(self) -> int:
        return int(self.nodes["is_leaf"].sum())

    @property
    def raw_left_cat_bitsets(self) -> np.ndarray:
        """The categories that go left, as bits of eight 32-bit words for each categorical split."""
        splits = self._frame["categories"][self._frame["categories"].notna()]
        bits = np.zeros((len(splits), 8), np.uint32)
        for row, levels in zip(bits, splits, strict=True):
            for level in map(int, levels):
                row[level // 32] |= np.uint32(1 << level % 32)
        return bits


class _Views:
    """Views of a fitted estimator of dboost under private names of scikit-learn's."""

    def fit(self, *arguments: Any, **keywords: Any) -> Any:
        super().fit(*arguments, **keywords)  # type: ignore[misc]
        # scikit-learn keeps the trees after the best iteration, and counts them.
        self.n_iter_ = int(self.booster_.history["iteration"].max())
        return self

    @property
    def _predictors(self) -> list[list[_Predictor]]:
        k = self.booster_.ensemble.n_outputs
        sizes = [tree.n_nodes for tree in self.booster_.ensemble.trees]
        trees = [_Predictor(nodes) for _, nodes in self.booster_.to_frame().groupby(np.repeat(np.arange(len(sizes)), sizes))]
        return [trees[first : first + k] for first in range(0, len(trees), k)]

    @property
    def _random_seed(self) -> int:
        return self._seeds.split

    @property
    def _bin_mapper(self) -> SimpleNamespace:
        edges = self.booster_.ensemble.edges
        return SimpleNamespace(n_bins_non_missing_=np.array([0 if one is None else len(one) + 1 for one in edges]))

    def _raw_predict(self, X: Any) -> np.ndarray:
        raw = self.booster_.predict(X, raw_score=True)
        return np.asarray(raw).reshape(len(raw), -1)

    def _should_stop(self, scores: list[float]) -> bool:
        rule = StoppingRule("score", self.n_iter_no_change, larger_is_better=True, tolerance=self.tol)
        return any([rule.should_stop(i, {"score": score}) for i, score in enumerate(scores, 1)])

    def _check_interaction_cst(self, n_features: int) -> list[set[int]] | None:
        features: Any = [SimpleNamespace(name=f"f{i}") for i in range(n_features)]
        constraints = make_parameters({"interaction_cst": self.interaction_cst}).interaction_cst
        return None if constraints is None else [set(group) for group in interaction_groups(constraints, features)]


def _swapped(name: str, base: Any) -> Any:
    """Return a subclass of one of dboost's estimators with the name and the defaults of scikit-learn's."""

    def init(self: Any, **given: Any) -> None:
        global _made
        _made += 1
        base.__init__(self, **DEFAULTS | given)

    # scikit-learn reads the names and defaults of the parameters from the signature.
    signature = inspect.signature(base.__init__)
    parameters = [
        parameter
        if name == "self"
        else parameter.replace(kind=parameter.KEYWORD_ONLY, default=DEFAULTS.get(name, parameter.default))
        for name, parameter in signature.parameters.items()
    ]
    init.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return type(name, (_Views, base), {"__init__": init, "__module__": "sklearn.ensemble"})


sklearn.ensemble.HistGradientBoostingClassifier = _swapped("HistGradientBoostingClassifier", DBoostClassifier)
sklearn.ensemble.HistGradientBoostingRegressor = _swapped("HistGradientBoostingRegressor", DBoostRegressor)


def _key(item: Any) -> str:
    return f"{item.path.stem}::{item.name}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: Any) -> Any:
    global _made
    _made = 0
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Any:
    report = yield
    if report.when == "call" or report.outcome != "passed":
        message = "" if call.excinfo is None else call.excinfo.exconly().splitlines()[0][:300]
        _outcomes[_key(item)] = (report.outcome, _made, message)
    return report


def pytest_sessionfinish() -> None:
    path = os.environ.get("SWAP_OUTCOMES")
    if path:
        with open(path, "w") as file:
            json.dump(_outcomes, file, indent=1)
