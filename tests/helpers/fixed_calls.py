"""The fits of `benchmarks.fixed_fits` as calls, for any place: `CASES`, and what of each a place may treat in its own way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import dboost
from benchmarks import fixed_fits
from benchmarks.fixed_fits import CONTINUED, FEATURES, FRAME, HELD_OUT, LATER, REFITTED, SIMPLE, wide_frame
from dboost import Booster
from dboost.booster import as_booster
from dboost.metrics import Metric
from tests.helpers.fits import cut, saved
from tests.helpers.outside_losses import Interval, NormalOfUser, PseudoHuber, intervals
from tests.helpers.places import Call, seeded

DEFAULTS: dict[str, Any] = {"max_iter": 6, "max_leaf_nodes": 10, "n_threads": 1, "progress": False}


@dataclass(frozen=True)
class Fixed:
    """A fit. The properties are those of a draw that decide which places can train it."""

    target: str | list[str]
    #: Of the fit, with the roles.
    options: Mapping[str, Any]
    #: Of the model that is continued with other rows; None if there is none.
    first: Mapping[str, Any] | None = None
    frame: pd.DataFrame = field(default_factory=lambda: FRAME)

    #: Whether leaf values are estimated anew from the other rows, instead of training on.
    refits: bool = False

    mistake = None

    @property
    def is_global(self) -> bool:
        """Whether all trees have the same bins, without which rows can be neither streamed nor prepared."""
        return self.options.get("split_proposal", "global") == "global"

    @property
    def arcbites(self) -> Any:
        return self.options.get("arcbites")

    @cached_property
    def earlier(self) -> Booster | None:
        if self.first is None:
            return None
        n_trees = {} if self.refits else {"max_iter": 3}
        frame = _with_bounds(FRAME) if "lower" in self.target else FRAME
        return dboost.fit(frame, self.target, **DEFAULTS | {"features": FEATURES} | n_trees | self.first)

    @cached_property
    def kinds(self) -> set[str]:
        """Return what of the fit a place may have code of its own for."""
        named = {name for name in KINDS if self.options.get(name) is not None}
        values = {f"{name}={value}" for name, value in self.options.items() if isinstance(value, str) and name not in ROLES}
        kinds = named | (values & {"step=line_search", "criterion=gradient", "growth=depth_wise", "split_proposal=exact"})
        kinds |= values & {"loss=huber", "split_proposal=tree", "split_proposal=node", "max_iter=auto"}
        if "normal" in (self.options.get("loss"), (self.first or {}).get("loss")):
            kinds.add("loss=normal")
        if values & {"loss=absolute_error", "loss=quantile"}:
            kinds.add("quantiles")
        if isinstance(self.options.get("loss"), list):
            same = {"absolute_error": "quantiles", "quantile": "quantiles", "huber": "loss=huber"}
            kinds |= {same[loss] for loss in self.options["loss"] if loss in same}
        elif not isinstance(self.options.get("loss", "auto"), str):
            kinds.add("own loss")
            if self.options["loss"].statistic is not None:
                kinds.add("statistic of all rows")
        if self.options.get("boosting") == "forest":
            kinds |= {"forest", "forest, continued"} if self.first is not None else {"forest"}
        if isinstance(self.target, list):
            kinds.add("several targets")
        if self.first is not None:
            kinds.add("refitted" if self.refits else "continued")
        if isinstance(self.options.get("learning_rate"), list):
            kinds.add("learning_rate")
        if self.frame.shape[1] > 32:
            kinds.add("many columns")
        if self.options.get("eval_metric") is METRICS:
            kinds.add("own metrics")
        if self.target in ("grade", "level"):
            kinds.add("classes")
        if self.frame is LIGHT_START:
            kinds.add("a partition of weight zero")
        if self.frame is IN_SMALL_UNITS:
            kinds.add(f"small units of {'weights' if 'sample_weight' in self.options else 'targets'}")
        if "multi_strategy" in (self.options if self.first is None else self.first):
            kinds.add("one tree for all outputs")
        return kinds


ROLES = ("sample_weight", "offset", "group")
#: Options that are kinds, whatever their value.
KINDS = (
    *ROLES, "arcbites", "early_stopping_rounds", "eval_set", "influence_trimming", "interaction_cst", "keep_summary",
    "max_features", "monotonic_cst", "subsample", "validation_fraction",
)  # fmt: skip


def _with_bounds(frame: pd.DataFrame) -> pd.DataFrame:
    lower, upper = intervals(np.random.default_rng(len(frame)), len(frame), frame["y"].to_numpy(np.float64))
    return frame.assign(lower=lower, upper=upper)


#: Weights below one, and targets whose squares are no floats.
IN_SMALL_UNITS = FRAME.assign(light=FRAME["v"] / len(FRAME), tiny=FRAME["tails"] * 1e-200)


def gap(y: np.ndarray, prediction: np.ndarray, weight: np.ndarray | None) -> float:
    return float(np.average(np.abs(y - prediction), weights=weight))


def _largest_gap(y: np.ndarray, prediction: np.ndarray, weight: np.ndarray | None) -> float:
    return float(np.abs(y - prediction).max())


#: Metrics of users, of all rows and merged from parts, and those that rank all rows.
METRICS: list[Any] = [gap, Metric("largest", _largest_gap, max, float), "map@20", "ndcg", "ndcg@20"]

CASES: dict[str, Fixed] = {name: Fixed(target, options) for name, (target, options) in SIMPLE.items()}
CASES |= {name: Fixed(target, then, first, LATER) for name, (target, first, then) in CONTINUED.items()}
CASES |= {name: Fixed(target, how, first, LATER, refits=True) for name, (target, first, how) in REFITTED.items()}
CASES["many columns"] = Fixed("y", {"features": None, "min_category_hessian": 1.0}, frame=wide_frame())
CASES["held-out rows, 3 classes"] = Fixed(
    "grade", {"max_iter": 9, "early_stopping_rounds": 1, "learning_rate": 0.9, "validation_fraction": 0.3, "sample_weight": "w"}
)
CASES["held-out rows, arcbites"] = Fixed(
    "y", {"arcbites": dboost.ArcBites(2, None, 2), "validation_fraction": 200, "eval_metric": "mae"}
)
CASES["own metrics"] = Fixed("late", {"eval_set": HELD_OUT, "eval_metric": METRICS, "early_stopping_rounds": 2})
CASES["expectile"] = Fixed("tails", {"loss": "expectile", "expectile": 0.9, "sample_weight": "v", "eval_set": HELD_OUT})
CASES |= {
    f"normal{name}": Fixed("y", {"loss": "normal", **options})
    for name, options in (
        ("", {"sample_weight": "v", "offset": "o", "eval_set": HELD_OUT, "eval_metric": ["rmse", "normal"]}),
        (", one tree", {"multi_strategy": "multi_output_tree", "sample_weight": "w", "subsample": 0.7, "eval_set": HELD_OUT}),
        (", arcbites", {"arcbites": dboost.ArcBites(2, None, 2), "monotonic_cst": {"x": 1}}),
    )
}
CASES["normal, continued"] = Fixed("y", {"loss": "normal", "offset": "o"}, {"loss": "normal"}, LATER)
CASES["normal, refitted"] = Fixed("y", {"offset": "o"}, {"loss": "normal"}, LATER, refits=True)
CASES |= {
    f"quantiles{name}": Fixed("tails", {"loss": "quantile", "quantile": [0.1, 0.5, 0.9], **options})
    for name, options in (
        ("", {"sample_weight": "v", "eval_set": HELD_OUT, "early_stopping_rounds": 3}),
        (", arcbites", {"arcbites": dboost.ArcBites(2, None, 2), "subsample": 0.7}),
        (", one tree", {"multi_strategy": "multi_output_tree", "sample_weight": "w", "eval_set": HELD_OUT}),
        (", one tree, fractions", {"multi_strategy": "multi_output_tree", "sample_weight": "v", "subsample": 0.7}),
    )
}
FOREST: dict[str, Any] = {"boosting": "forest", "max_leaf_nodes": 12}
CASES |= {
    f"forest, {name}": Fixed(target, FOREST | options)
    for name, target, options in (
        ("numbers", "y", {"eval_set": HELD_OUT, "offset": "o"}),
        ("weights", "y", {"sample_weight": "v", "max_features": "sqrt", "subsample": 0.4, "early_stopping_rounds": 2}),
        ("all rows", "y", {"sample_weight": "w", "subsample": 1.0, "max_leaf_nodes": 40}),
        ("2 classes", "late", {"eval_set": HELD_OUT, "eval_metric": ["roc_auc", "log_loss"], "sample_weight": "w"}),
        ("3 classes", "grade", {"eval_set": HELD_OUT}),
    )
}
CASES["forest, continued"] = Fixed("y", FOREST | {"eval_set": HELD_OUT}, FOREST | {"random_state": 3}, LATER)
CASES["forest of classes, continued"] = Fixed("level", FOREST | {"max_iter": 3}, FOREST | {"loss": "half_brier_score"}, LATER)
CASES["small units of weights"] = Fixed("y", {"sample_weight": "light"}, frame=IN_SMALL_UNITS)
CASES["small units of targets"] = Fixed("tiny", {"loss": "huber"}, frame=IN_SMALL_UNITS)
CASES["small units of targets, arcbites"] = Fixed(
    "tiny", {"loss": "huber", "arcbites": dboost.ArcBites(2, None, 2)}, frame=IN_SMALL_UNITS
)
#: The first partition has no row of positive weight.
LIGHT_START = FRAME.assign(w=FRAME["w"].where(np.arange(len(FRAME)) >= len(FRAME) // 25, 0.0))
CASES["a partition of weight zero"] = Fixed("grade", {"sample_weight": "w", "offset": "o"}, frame=LIGHT_START)
GROUPED = FRAME.assign(customer=np.random.default_rng(6).integers(-5, len(FRAME) // 10, len(FRAME)))
CASES |= {
    f"groups{name}": Fixed("y", {"group": "customer", "sample_weight": "w", **options}, frame=GROUPED)
    for name, options in (
        ("", {"subsample": 0.5}),
        (", arcbites", {"arcbites": dboost.ArcBites(2, None, 2)}),
        (", parts", {"arcbites": dboost.ArcBites(2, 1, parts=2), "subsample": 0.7}),
    )
}
#: A search and a fit on all rows, both with few iterations.
_AUTO: dict[str, Any] = {"max_iter": "auto", "learning_rate": 0.4, "early_stopping_rounds": 2}
CASES |= {
    f"auto, {name}": Fixed(target, _AUTO | options, frame=GROUPED)
    for name, target, options in (
        ("numbers", "y", {"sample_weight": "w", "offset": "o"}),
        ("3 classes", "grade", {"sample_weight": "v"}),
        ("2 classes", "late", {"eval_metric": "roc_auc", "validation_fraction": 150}),
        ("medians", "tails", {"loss": "absolute_error", "sample_weight": "w"}),
        ("groups", "y", {"group": "customer", "keep_summary": False}),
        ("several targets", ["y", "tails"], {"multi_strategy": "multi_output_tree", "sample_weight": "w"}),
        ("proposal tree", "y", {"split_proposal": "tree", "max_bins": 12}),
        ("proposal exact", "late", {"split_proposal": "exact", "refit": True}),
        ("bag", "grade", {"bag": 3, "sample_weight": "w"}),
    )
}
CASES["auto, one fit"] = Fixed("grade", _AUTO | {"refit": False, "sample_weight": "w"})
CASES["no summary"] = Fixed("late", {"keep_summary": False})
CASES["learning rates"] = Fixed("y", {"learning_rate": [0.5, 0.3, 0.2, 0.1, 0.1, 0.05]})
CASES["own loss with a statistic"] = Fixed("tails", {"loss": PseudoHuber(), "sample_weight": "v", "eval_set": HELD_OUT})
CASES |= {
    f"two targets{name}": Fixed(["lower", "upper"], {"loss": loss, **options}, frame=_with_bounds(FRAME))
    for name, loss, options in (
        ("", Interval(), {"sample_weight": "w", "eval_set": _with_bounds(HELD_OUT), "early_stopping_rounds": 3}),
        (", held-out rows", Interval(), {"offset": "o", "validation_fraction": 0.2}),
        (", weights", Interval(), {"sample_weight": "v"}),
        (", arcbites", Interval(), {"arcbites": dboost.ArcBites(2, None, 2), "eval_set": _with_bounds(HELD_OUT)}),
    )
}
CASES["two targets, continued"] = Fixed(
    ["lower", "upper"], {"loss": Interval()}, {"loss": Interval()}, frame=_with_bounds(LATER)
)
CASES |= {
    f"{name}, proposal {proposal}": Fixed(
        target, {"split_proposal": proposal, **options, **({} if proposal == "exact" else {"max_bins": 12})}
    )
    for name, proposal, target, options in (
        ("medians", "tree", "tails", {"loss": "absolute_error", "subsample": 0.7}),
        (
            "constrained",
            "tree",
            "y",
            {"monotonic_cst": {"x": 1}, "max_features": 0.7, "interaction_cst": [["x", "size", "town"]]},
        ),
        ("deep", "node", "y", {"growth": "depth_wise", "max_depth": 4, "max_leaf_nodes": None}),
        ("trimmed", "exact", "late", {"influence_trimming": 0.2, "learning_rate": 0.5}),
    )
}


def _with_labels(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(large=(frame["tails"] > 0).astype(int), evening=frame["late"].astype(int))


CASES |= {
    f"targets, {name}": Fixed(target, options, frame=_with_labels(FRAME))
    for name, target, options in (
        ("squared error", ["y", "tails"], {"loss": "squared_error", "sample_weight": "w", "eval_set": HELD_OUT}),
        ("labels", ["large", "evening"], {"loss": "log_loss", "subsample": 0.7, "eval_set": _with_labels(HELD_OUT)}),
        ("quantiles", ["tails", "y"], {"loss": "quantile", "quantile": 0.8, "sample_weight": "v"}),
        ("several losses", ["tails", "y", "large"], {"loss": ["huber", "squared_error", "log_loss"], "eval_metric": None}),
        ("arcbites", ["y", "tails"], {"arcbites": dboost.ArcBites(2, None, 2), "eval_set": HELD_OUT}),
        ("held-out rows", ["y", "tails"], {"validation_fraction": 0.2, "early_stopping_rounds": 2, "eval_metric": "rmse"}),
        ("one tree", ["y", "tails"], {"multi_strategy": "multi_output_tree", "sample_weight": "w"}),
        ("forest", ["y", "tails"], FOREST | {"sample_weight": "v", "eval_set": HELD_OUT}),
        ("forest of labels", ["large", "evening"], FOREST | {"sample_weight": "w"}),
    )
}
CASES["targets, own loss"] = Fixed("tails", {"loss": NormalOfUser(), "sample_weight": "w", "eval_set": HELD_OUT})
CASES["targets, continued"] = Fixed(["y", "tails"], {"sample_weight": "w"}, {}, LATER)
CASES["targets, refitted"] = Fixed(["y", "tails"], {"decay": 0.3}, {"loss": "absolute_error"}, LATER, refits=True)


_ONE_TREE = {"loss": "log_loss", "multi_strategy": "multi_output_tree"}
CASES |= {
    f"one tree, {name}": Fixed(target, _ONE_TREE | options)
    for name, target, options in (
        ("3 classes", "grade", {}),
        (
            "6 classes, weights",
            "level",
            {"sample_weight": "w", "subsample": 0.7, "eval_set": HELD_OUT, "early_stopping_rounds": 2},
        ),
        ("fractions as weights", "level", {"sample_weight": "v", "growth": "depth_wise", "max_features": 0.6}),
        ("gradient", "grade", {"criterion": "gradient", "sample_weight": "v", "validation_fraction": 0.2}),
        ("arcbites", "level", {"arcbites": dboost.ArcBites(2, None, 2), "eval_set": HELD_OUT}),
        ("proposal tree", "grade", {"split_proposal": "tree", "max_bins": 12, "l1_regularization": 0.5}),
        ("proposal node", "grade", {"split_proposal": "node", "max_bins": 12}),
    )
}
CASES |= {
    f"one tree, {name}": Fixed(targets, {"multi_strategy": "multi_output_tree"} | options)
    for name, targets, options in (
        ("two targets", ["y", "tails"], {"loss": "squared_error", "sample_weight": "w", "eval_set": HELD_OUT}),
        ("two losses", ["count", "y"], {"loss": ["poisson", "squared_error"], "sample_weight": "v", "subsample": 0.7}),
        ("huber", ["y", "tails", "count"], {"loss": ["huber", "huber", "poisson"], "sample_weight": "v", "subsample": 0.7}),
    )
}
CASES["one tree, continued"] = Fixed("level", {"sample_weight": "v"}, _ONE_TREE, LATER)
CASES["one tree, refitted"] = Fixed("level", {"decay": 0.3, "sample_weight": "v"}, _ONE_TREE, LATER, refits=True)


@dataclass(frozen=True)
class FixedCall(Call):
    """A case at a place."""

    fixed: Fixed = field(kw_only=True)
    #: Whether the rows are in partitions, of which one is empty.
    is_lazy: bool = False

    def rng(self, what: str) -> Random:
        return seeded(self.place, what, self.fixed.target, sorted(self.fixed.options))

    def _given(self, frame: pd.DataFrame) -> Any:
        n = len(frame)
        return cut(frame, [n // 25, n // 2, n // 2]) if self.is_lazy else frame

    def rows(self) -> dict[str, Any]:
        roles = {role: self.fixed.options[role] for role in ROLES if role in self.fixed.options}
        return {"data": self._given(self.fixed.frame), "target": self.fixed.target, **roles}

    def train(self, **more: Any) -> Booster:
        if not self.fixed.refits:
            return super().train(**more)
        start, how = as_booster(more.pop("start_from", self.earlier)), {"n_threads": 1} | more
        decay = {name: value for name, value in self.fixed.options.items() if name not in ROLES}
        return start.refit_leaves(**self.rows(), **decay, **how)

    def keywords(self) -> dict[str, Any]:
        keywords = DEFAULTS | {name: value for name, value in self.fixed.options.items() if name not in ROLES}
        if self.earlier is None:
            keywords = {"features": FEATURES} | keywords
        else:
            keywords |= {"start_from": self.earlier}
        sets = keywords.get("eval_set")
        if isinstance(sets, dict):
            keywords["eval_set"] = {name: self._given(frame) for name, frame in sets.items()}
        elif sets is not None:
            keywords["eval_set"] = self._given(sets)
        return keywords


class Result(NamedTuple):
    """What must be the same at every place."""

    model: bytes
    history: pd.DataFrame
    predictions: list[np.ndarray]


def assert_same(found: Result, expected: Result) -> None:
    assert found.model == expected.model
    pd.testing.assert_frame_equal(found.history, expected.history, check_exact=True, check_dtype=False)
    for one, other in zip(found.predictions, expected.predictions, strict=True):
        np.testing.assert_array_equal(one, other)


def result_of(booster: Booster, fixed: Fixed) -> Result:
    rows = fixed.frame.head(200) if fixed.frame is not FRAME else HELD_OUT
    predictions = [booster.predict(rows), booster.predict(rows, raw_score=True), booster.apply(rows)]
    if booster.classes_ is not None:
        predictions.append(booster.predict_proba(rows))
    history = booster.history.iloc[0 if fixed.earlier is None or fixed.refits else fixed.earlier.n_iter_ :]  # of the new trees
    compared = [name for name in sorted(history) if fixed_fits.is_compared(name)]
    return Result(saved(booster), history[compared].reset_index(drop=True), [np.asarray(one) for one in predictions])
