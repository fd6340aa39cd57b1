"""Parameters of learning: names, defaults, meaning and limits, validated once and then frozen.

`Parameters` is the record that the fit, its sessions and the model file use. Its fields are the table of the parameters: the
checks, the signatures of the functions that train and of the estimators, their documentation, the keys of the command line and
the page of the parameters follow from them. Type checkers need the names a second time (`TreeParameters`).

`peer_names` has the names of other libraries for them. The functions that train, the estimators and the command line accept
these and convert them at once: models, checkpoints and prepared data contain no aliases.

`ArcBites` is the record of ``arcbites=``: sequential boosting on random subsets of the rows (*bites*) that fit in memory.
Boosting starts at the current scores of a bite's rows and continues on them for some trees, or as long as an independent test
set improves; then it moves to the next bite (L. Breiman, "Pasting bites together for prediction in large data sets and
on-line", 1997; J. Friedman, "Greedy function approximation", 2001, section 10). `training.arcbites` implements it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, NamedTuple, TypedDict, TypeVar

import numpy as np

from dboost.errors import ParameterError
from dboost.params.peer_names import (
    LOSSES_NOT_BUILT,
    NONES,
    SHOWN_ALIASES,
    explanation,
    no_loss,
    our_value,
    shortened,
    similar_losses,
)
from dboost.tracebacks import short_tracebacks

F = TypeVar("F", bound=Callable[..., Any])

GBDT, FOREST = "gbdt", "forest"
#: The loss of classes in a forest.
BRIER = "half_brier_score"
#: The parameters of a forest that are not given.
FOREST_DEFAULTS: dict[str, Any] = {
    "learning_rate": 1.0,
    "l2_regularization": 0.0,
    "subsample": 0.632,
    "max_features": "auto",
    "max_leaf_nodes": None,
    "min_samples_leaf": 1,
    "min_hessian": 0.0,
    "multi_strategy": "multi_output_tree",
}
#: Parameters of the steps of boosting, which a forest does not take, with the values that state what it does.
_OF_STEPS = {"learning_rate": 1.0, "criterion": "newton", "step": "leaf", "max_delta_step": None, "influence_trimming": None}

CYCLIC, RANDOM, ADAPTIVE = "cyclic", "random", "adaptive"
ORDERS = (RANDOM, CYCLIC, ADAPTIVE)
#: Number of bites when neither it nor a memory limit is given.
DEFAULT_BITES = 10
#: Iterations without improvement after which a visit ends, when neither the record nor the fit sets them.
DEFAULT_ROUNDS = 10


class Integer(NamedTuple):
    """The values of a parameter: integers within limits."""

    least: int
    most: int | None = None
    optional: bool = False  # whether None is a value, too

    def checked(self, name: str, value: Any) -> Any:
        """Return a value; raise a ParameterError that names the parameter if it is not allowed."""
        if value is None and self.optional:
            return None
        is_integer = isinstance(value, Integral) and not isinstance(value, bool)
        if not is_integer or value < self.least or (self.most is not None and value > self.most):
            limits = f"of at least {self.least}" if self.most is None else f"between {self.least} and {self.most}"
            raise ParameterError(f"{name}={value!r} must be an integer {limits}{self._or_none}")
        return int(value)

    def __str__(self) -> str:
        """The values as numpydoc shows them."""
        return f"int >= {self.least}{self._or_none}" if self.most is None else f"int, {self.least}…{self.most}{self._or_none}"

    @property
    def _or_none(self) -> str:
        return " or None" if self.optional else ""


class Number(NamedTuple):
    """The values of a parameter: finite numbers within limits, as floats."""

    least: float | None = None
    above: float | None = None
    below: float = math.inf
    most: float = math.inf
    optional: bool = False

    def checked(self, name: str, value: Any) -> Any:
        if value is None and self.optional:
            return None
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if (
            not is_number
            or not math.isfinite(value)
            or (self.least is not None and value < self.least)
            or (self.above is not None and value <= self.above)
            or value >= self.below
            or value > self.most
        ):
            limits = f"of at least {self.least:g}" if self.least is not None else f"greater than {self.above:g}"
            limits += f" and less than {self.below:g}" if self.below < math.inf else ""
            limits += f" and at most {self.most:g}" if self.most < math.inf else ""
            raise ParameterError(f"{name}={value!r} must be a number {limits}{' or None' if self.optional else ''}")
        return float(value)  # 1 and 1.0 give the same model file

    def __str__(self) -> str:
        limits = f">= {self.least:g}" if self.least is not None else f"> {self.above:g}"
        limits += (
            f" and < {self.below:g}" if self.below < math.inf else f" and <= {self.most:g}" if self.most < math.inf else ""
        )
        return f"float {limits}{' or None' if self.optional else ''}"


class Choice:
    """The values of a parameter: some words."""

    def __init__(self, *words: str) -> None:
        self._words = words

    def checked(self, name: str, value: Any) -> Any:
        if value not in self._words:
            raise ParameterError(f"{name}={value!r} must be one of {', '.join(map(repr, self._words))}")
        return value

    def __str__(self) -> str:
        return "{" + ", ".join(f'"{word}"' for word in self._words) + "}"


class Special:
    """The values of a parameter: those that a function returns or raises an error for."""

    def __init__(self, shown: str, check: Callable[[Any], Any]) -> None:
        self._shown, self._check = shown, check

    def checked(self, _: str, value: Any) -> Any:
        return self._check(value)

    def __str__(self) -> str:
        return self._shown


@short_tracebacks
@dataclass(frozen=True)
class ArcBites:
    """Sequential boosting on random subsets of the rows.

    Every row belongs to one bite, by a hash of the seed and its number among all rows; so the bites are random subsets of about
    equal size, whatever the partitions, and on a cluster every worker has a part of each. One bite at a time is in memory and
    trained on. At the start of a visit the scores of a bite's rows are brought up to date with all trees of the model.

    Without `trees_per_visit`, or with `early_stopping_rounds`, an evaluation set decides when a visit ends: after that
    many iterations in which its metric has not improved. The model is cut back to the best iteration so far, which may be the
    one at the start of the visit, and the next bite continues from there. The fit ends after all visits, after a whole cycle of
    bites without improvement, or when `max_iter` iterations have been grown, including those cut back.

    ``arcbites=True`` is ``ArcBites(trees_per_visit=1, visits=None, parts=10)``: a tree per visit, bites that are composed anew
    in every cycle, and no evaluation set. With a tenth of the learning rate and ten to twenty times as many iterations its
    loss is about that of boosting on all rows.

    Parameters
    ----------
    n_bites : int >= 1 or None, default None
        None: the smallest number for which one bite fits in `memory_limit`; 10 without a limit.
    trees_per_visit : int >= 1 or None, default None
        Largest number of iterations per visit. With this alone every visit grows that many, and no evaluation set is needed.
    visits : int >= 1 or None, default 1
        Visits of each bite (with order="adaptive", on average). None: until `max_iter`.
    order : {"random", "cyclic", "adaptive"}, default "random"
        A new random order in every cycle; the same order in every cycle; or always the bite (other than the last one) whose
        rows have the highest mean loss at present. Adaptive order reads all bites before every visit.
    early_stopping_rounds : int >= 1 or None, default None
        Iterations without improvement of the last metric of the last evaluation set after which a visit ends.
        None, without `trees_per_visit`: the fit's own `early_stopping_rounds`, else 10.
    parts : int >= 1, default 1
        Number of parts per bite. The rows are divided into `n_bites` × `parts` parts, and every cycle joins the parts to bites
        in a different way. With one part the bites are the same in every cycle, and many cycles overfit them; with two or more
        they do so later. Not with order="adaptive", which needs the loss of fixed bites.

    Raises
    ------
    ParameterError
        When a value is out of range.
    """

    n_bites: int | None = None
    trees_per_visit: int | None = None
    visits: int | None = 1
    order: str = RANDOM
    early_stopping_rounds: int | None = None
    parts: int = 1

    def __post_init__(self) -> None:
        for name in ("n_bites", "trees_per_visit", "visits", "early_stopping_rounds", "parts"):
            values = Integer(1, optional=name != "parts")
            object.__setattr__(self, name, values.checked(f"arcbites: {name}", getattr(self, name)))
        if self.parts > 1 and self.order == ADAPTIVE:
            raise ParameterError(
                f"arcbites: parts={self.parts} makes other bites in every cycle, order='adaptive' wants the same"
            )
        Choice(*ORDERS).checked("arcbites: order", self.order)

    @property
    def n_parts(self) -> int:
        """Number of parts of all bites together."""
        assert self.n_bites is not None
        return self.n_bites * self.parts

    @property
    def is_watched(self) -> bool:
        """Whether an evaluation set decides when a visit ends."""
        return self.trees_per_visit is None or self.early_stopping_rounds is not None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


#: ``arcbites=True``: of the settings that were measured, the one with the lowest loss (docs/arcbites.md, "Cost and accuracy").
MANY_VISITS = ArcBites(trees_per_visit=1, visits=None, parts=10)


def read_arcbites(value: Any) -> ArcBites | None:
    """Return the record for a value of ``arcbites=``: a record, a dict of its fields, True for `MANY_VISITS`, False or None.

    Raises
    ------
    ParameterError
        For any other value, an unknown field, or a field that is out of range.
    """
    if value is None or isinstance(value, ArcBites):
        return value
    if isinstance(value, bool):
        return MANY_VISITS if value else None
    if isinstance(value, dict):
        unknown = sorted(set(value) - set(ArcBites.__dataclass_fields__))
        if unknown:
            known = ", ".join(ArcBites.__dataclass_fields__)
            raise ParameterError(f"arcbites: unknown field {unknown[0]!r}; there are: {known}")
        return ArcBites(**value)
    raise ParameterError(f"arcbites={value!r:.60} must be a dboost.ArcBites, a dict of its fields, True or None")


@short_tracebacks
@dataclass(frozen=True)
class EarlyStopping:
    """When to stop a fit that does not improve any more; the model keeps the iterations up to the best one.

    Parameters
    ----------
    rounds : int >= 1
        Iterations without improvement after which the fit stops.
    metric : str, optional
        Name of one of the fit's metrics. Default: the last one.
    eval_set : str, optional
        Name of one of the evaluation sets. Default: the last one.
    min_delta : float >= 0, default 0.0
        Only a larger change of the metric counts as an improvement.

    Raises
    ------
    ParameterError
        When a value is out of range.

    Examples
    --------
    >>> stopping = dboost.EarlyStopping(20, metric="auc", min_delta=1e-4)
    >>> dboost.fit(frame, "y", eval_set=test, eval_metric=["logloss", "auc"], early_stopping=stopping)  # doctest: +SKIP
    """

    rounds: int
    metric: str | None = None
    eval_set: str | None = None
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "rounds", Integer(1).checked("early_stopping: rounds", self.rounds))
        for name in ("metric", "eval_set"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise ParameterError(f"early_stopping: {name}={value!r:.60} must be a name or None")
        object.__setattr__(self, "min_delta", Number(least=0.0).checked("early_stopping: min_delta", self.min_delta))


def loss_names() -> tuple[str, ...]:
    """Return the values of the parameter `loss` that are text."""
    from dboost.losses import BUILT_IN  # imports compiled kernels, which constructing an estimator does not need

    return "auto", *(loss.name for loss in BUILT_IN)


def is_for_classes(loss: Any) -> bool:
    """Whether a loss, or the built-in one of that name, is for classes."""
    from dboost.losses import BUILT_IN

    return getattr(loss, "is_classification", False) or any(kind.name == loss and kind.targets.are_classes for kind in BUILT_IN)


def is_of_groups(loss: Any) -> bool:
    """Whether the built-in loss of that name depends on groups of rows."""
    from dboost.losses import BUILT_IN

    return any(kind.name == loss and kind.targets.groups for kind in BUILT_IN)


def _loss_of_options() -> dict[str, str]:
    """Return the parameters of single losses, each with the name of its loss."""
    from dboost.losses import BUILT_IN

    return {option: loss.name for loss in BUILT_IN for option in loss.options}


def _checked_loss(loss: Any) -> Any:
    if isinstance(loss, list | tuple):
        if not loss:
            raise ParameterError(f"loss={loss!r} is empty: give one loss, or one for each target")
        for name in loss:
            if name == "auto":
                raise ParameterError("loss: name the loss of each target, 'auto' is for all together")
            _checked_loss(name)
        return tuple(loss)
    if isinstance(loss, str) or not hasattr(loss, "inverse_link"):
        if loss not in loss_names():
            if isinstance(loss, str) and loss.lower() in LOSSES_NOT_BUILT:
                raise ParameterError(f"loss={loss!r}: {LOSSES_NOT_BUILT[loss.lower()]}")
            names = ", ".join(map(repr, loss_names()))
            similar = similar_losses(str(loss), loss_names())
            hint = f"; did you mean {similar[0]!r}?" if similar else no_loss(loss)
            raise ParameterError(f"loss={loss!r} must be one of {names} or a dboost.losses.Loss of your own{hint}")
    elif isinstance(loss, type):
        raise ParameterError(f"loss is the class {loss.__name__}: give an instance, {loss.__name__}()")
    elif not isinstance(loss.name, str) or not loss.name:
        raise ParameterError(
            f"the name of the loss {type(loss).__name__} is {loss.name!r}: it must be text, for the model file"
        )
    elif loss.name in loss_names():
        raise ParameterError(f"a loss of your own must not be called {loss.name!r}, which is one of dboost's")
    return loss


def _checked_directions(directions: Any) -> Any:
    if directions is not None and not isinstance(directions, dict | list):
        raise ParameterError(f"monotonic_cst={shortened(directions)} must be a dict of names or one number per feature")
    return directions


def _checked_groups(groups: Any) -> Any:
    if groups is None or groups in ("pairwise", "no_interactions"):
        return groups
    if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
        raise ParameterError(
            "Interaction constraints must be a sequence of tuples or lists of names or numbers, 'pairwise' or "
            f"'no_interactions', not interaction_cst={shortened(groups)}"
        )
    return groups


def _checked_levels(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return _LEVEL.checked("quantile", value)
    levels = [_LEVEL.checked("quantile: the level", level) for level in value if level is not None]
    if len(levels) < len(value) or len(levels) < 2 or levels != sorted(set(levels)):
        raise ParameterError(
            f"quantile={shortened(value)} must be one level, or a list of at least two in ascending order, each once"
        )
    return levels


_LEVEL = Number(above=0.0, below=1.0, optional=True)


def _checked_boosting(boosting: Any) -> Any:
    hint = "; a random forest is 'forest'" if boosting in ("rf", "random_forest") else ""
    if boosting not in (GBDT, FOREST):
        raise ParameterError(f"boosting={boosting!r} must be one of {GBDT!r}, {FOREST!r}{hint}")
    return boosting


def _checked_share(share: Any) -> Any:
    """Return a value of `max_features`: a share of the features, "sqrt" or "auto"."""
    if isinstance(share, str):
        if share not in ("sqrt", "auto"):
            raise ParameterError(f"max_features={share!r} must be a share of the features, 'sqrt' or 'auto'")
        return share
    return Number(above=0.0, most=1.0).checked("max_features", share)


def _parameter(default: Any, values: Integer | Number | Choice | Special, meaning: str) -> Any:
    """Return the field of a parameter: its default, its values, and what it means."""
    return field(default=default, metadata={"values": values, "meaning": meaning})


#: Parameters that a model stores only if they differ from the default, so that models without them keep their bytes.
_STORED_IF_SET = ("boosting", "multi_strategy")


@dataclass(frozen=True)
class Parameters:
    loss: Any = _parameter(
        "auto",
        Special("str, a custom dboost.losses.Loss, or a list of these", _checked_loss),
        '"squared_error", "absolute_error", "quantile", "huber", "expectile", "normal", "poisson", "gamma" or "tweedie" for '
        'regression, "log_loss" or "exponential" (two classes only) for classification, "half_brier_score" for classes in a '
        'forest; "auto": log_loss (in a forest half_brier_score) for truth values, text, categories and zeros and ones, '
        "else squared_error.",
    )
    boosting: str = _parameter(
        GBDT,
        Special('{"gbdt", "forest"}', _checked_boosting),
        "Gradient boosting, or a random forest: independent trees, whose means are averaged. A forest has other defaults: "
        '`subsample` 0.632, `max_features` "auto", `max_leaf_nodes` None, `min_samples_leaf` 1, `min_hessian` and '
        '`l2_regularization` 0, `multi_strategy` "multi_output_tree", no `learning_rate`.',
    )
    quantile: Any = _parameter(
        None,
        Special("number > 0 and < 1, a list of them, or None", _checked_levels),
        'The level, for loss="quantile" only, which requires it; or several in ascending order, whose predictions never cross.',
    )
    huber_alpha: float = _parameter(
        0.9, Number(above=0.0, below=1.0), 'The share of rows whose residuals count as small, for loss="huber" only.'
    )
    expectile: float | None = _parameter(
        None, Number(above=0.0, below=1.0, optional=True), 'The level, for loss="expectile" only, which requires it.'
    )
    tweedie_power: float = _parameter(1.5, Number(above=1.0, below=2.0), 'p of the variance μ^p, for loss="tweedie" only.')
    learning_rate: float = _parameter(
        0.1,
        Number(above=0.0),
        "Factor of each tree's leaf values; also a function of the iteration, from 0, or a sequence of them.",
    )
    max_iter: int = _parameter(
        100, Integer(1), 'Iterations; with K > 2 classes each of them grows K trees. "auto": rows that are held out decide.'
    )
    max_leaf_nodes: int | None = _parameter(31, Integer(2, optional=True), "Largest number of leaves of a tree.")
    max_depth: int | None = _parameter(None, Integer(1, optional=True), "Largest number of splits on a path.")
    min_samples_leaf: int = _parameter(20, Integer(1), "Smallest number of rows (of positive weight) in a leaf.")
    min_hessian: float = _parameter(1.0, Number(least=0.0), "Smallest sum of Hessians in a leaf.")
    l2_regularization: float = _parameter(1.0, Number(least=0.0), "λ of the leaf value -T_α(G) / (H + λ).")
    l1_regularization: float = _parameter(0.0, Number(least=0.0), "α of the leaf value -T_α(G) / (H + λ).")
    leaf_penalty: float = _parameter(
        0.0,
        Number(least=0.0),
        "γ: the gain that a split must have for its additional leaf; it is subtracted from the reported gain.",
    )
    min_gain: float = _parameter(0.0, Number(least=0.0), "The gain that a split must have beyond `leaf_penalty`.")
    subsample: float = _parameter(
        1.0, Number(above=0.0, most=1.0), "Share of the rows that take part in each iteration's trees."
    )
    influence_trimming: float | None = _parameter(
        None,
        Number(above=0.0, below=1.0, optional=True),
        "α: the rows of least influence (second derivative) are left out of a tree, as many as have at most this share of the "
        "total influence. For the log loss only.",
    )
    max_features: Any = _parameter(
        1.0,
        Special('float > 0 and <= 1, "sqrt" or "auto"', _checked_share),
        'Share of the features that are candidates for a split, sampled for every node; "sqrt": the square root of their '
        'number; "auto": all, in a forest the square root for classes and half for numbers.',
    )
    monotonic_cst: Any = _parameter(
        None,
        Special("dict of str to int, list of int, or None", _checked_directions),
        "By name or one for each feature: 1 where the prediction may only rise with the feature, -1 only fall, 0 for no "
        "constraint.",
    )
    interaction_cst: Any = _parameter(
        None,
        Special('list of lists of names or numbers, "pairwise", "no_interactions" or None', _checked_groups),
        "Groups of features that may occur together on a path; features that are not listed form a group of their own.",
    )
    max_delta_step: float | None = _parameter(
        None, Number(above=0.0, optional=True), "Bound of a leaf's step before the learning rate."
    )
    criterion: str = _parameter(
        "newton",
        Choice("newton", "gradient"),
        "What trees fit: Newton steps, with Hessians as weights, or the gradients by least squares.",
    )
    step: str = _parameter(
        "leaf",
        Choice("leaf", "line_search", "constant"),
        "What is added to the model: the tree with the value of each leaf that minimises the loss, the tree times the best "
        "multiplier, or the tree.",
    )
    growth: str = _parameter(
        "best_first",
        Choice("best_first", "depth_wise"),
        "Order in which leaves are split: by gain, or level by level.",
    )
    multi_strategy: str = _parameter(
        "one_output_per_tree",
        Choice("one_output_per_tree", "multi_output_tree"),
        "With several raw scores per row (K > 2 classes): K trees in each iteration, or one tree with K values per leaf, which "
        "takes about as long as one of them.",
    )
    split_proposal: str = _parameter(
        "global",
        Choice("global", "tree", "node", "exact"),
        "When split candidates are proposed: once, for every tree weighted by the Hessians of its rows, after every split by "
        "those of each node, or never: every distinct value is a candidate (at most 65,535). See `dboost.rows.bin_proposal`.",
    )
    max_bins: int = _parameter(255, Integer(2, 255), "Bins of a numeric feature, without the one for missing values.")
    categorical_smoothing: float = _parameter(10.0, Number(least=0.0), "Added to Hessian sums when categories are sorted.")
    categorical_l2: float = _parameter(3.0, Number(least=0.0), "Added to λ when categorical splits are scored.")
    max_category_group: int = _parameter(
        32,
        Integer(1),
        "Largest number of categories on the smaller side of a categorical split. LightGBM and XGBoost: `max_cat_threshold`.",
    )
    min_category_hessian: float = _parameter(
        20.0,
        Number(least=0.0),
        "Categories with a smaller sum of Hessians (and with less than 2 % of their node's, or too few to differ by more than "
        "noise) stay on the right side of categorical splits. LightGBM's `min_data_per_group` has the same purpose and counts "
        "rows.",
    )
    early_stopping_rounds: int | None = _parameter(
        None,
        Integer(1, optional=True),
        "Stop when the (last) metric of the (last) evaluation set has not improved for this many iterations.",
    )
    arcbites: ArcBites | None = _parameter(
        None,
        Special("dboost.ArcBites, True or None", read_arcbites),
        "Train on one random subset of the rows after the other; True: one tree per visit (see `dboost.ArcBites`).",
    )
    random_state: int = _parameter(
        0,
        Integer(0, 2**63 - 1),
        "Seed of all random choices. Functions that train accept None, or a generator of NumPy, too: each call draws a seed.",
    )

    def __post_init__(self) -> None:
        _checked_loss(self.loss)
        for name, loss in _loss_of_options().items():
            if loss not in self._losses and getattr(self, name) != type(self).__dataclass_fields__[name].default:
                raise ParameterError(f"{name}={getattr(self, name)!r} is for loss={loss!r}, not for loss={self.loss_name!r}")
            if loss in self._losses and getattr(self, name) is None:
                raise ParameterError(f"loss={loss!r} needs the level: {name}=0.9, say")
        for parameter in fields(self):
            object.__setattr__(
                self, parameter.name, parameter.metadata["values"].checked(parameter.name, getattr(self, parameter.name))
            )
        if self.is_forest:
            self._check_forest()
        elif BRIER in self._losses:
            raise ParameterError(f"loss={BRIER!r} is for boosting='forest': boosting takes 'log_loss' for classes")
        if self.monotonic_cst is not None and self.step != "leaf":
            raise ParameterError("monotonic_cst needs step='leaf', since other steps move all leaves at once")
        if self.multi_strategy == "multi_output_tree" and not self.is_forest:
            for name, value in (("step", "leaf"), ("influence_trimming", None), ("monotonic_cst", None)):
                if getattr(self, name) != value:
                    raise ParameterError(
                        f"multi_strategy='multi_output_tree' needs {name}={value!r}, since a tree is grown by all outputs "
                        "together"
                    )
        if self.split_proposal == "exact" and self.max_bins != 255:
            raise ParameterError(f"max_bins={self.max_bins} has no effect with split_proposal='exact': leave it out")

    def _check_forest(self) -> None:
        """Raise a ParameterError for parameters that a forest does not take."""
        for name, value in _OF_STEPS.items():
            value_given = getattr(self, name)
            if value_given != value:
                raise ParameterError(
                    f"{name}={value_given!r} is for boosting: the trees of a forest are averaged, leave it out"
                )
        if self.multi_strategy != "multi_output_tree":
            raise ParameterError(
                f"multi_strategy={self.multi_strategy!r} is for boosting: a forest has one tree for all classes, whose shares "
                "in a leaf add up to 1, or for all targets, so leave it out"
            )
        if self.arcbites is not None:
            raise ParameterError("a forest does not take arcbites: its trees grow from samples of all rows, see subsample")
        if any(loss not in ("auto", "squared_error", BRIER) for loss in self._losses):
            raise ParameterError(
                f"loss={self.loss_name!r} is for boosting: a forest averages means, so leave it out, or give 'squared_error' "
                f"for numbers or {BRIER!r} for classes"
            )

    @property
    def is_forest(self) -> bool:
        """Whether trees are averaged, not added up."""
        return self.boosting == FOREST

    @property
    def draws_rows(self) -> bool:
        """Whether trees grow from samples of rows."""
        return self.subsample < 1 or self.arcbites is not None

    @property
    def has_out_of_bag(self) -> bool:
        """Whether the history has metrics of the predictions of training rows by the trees that did not draw them."""
        return self.is_forest and self.subsample < 1

    @property
    def stopping_rounds(self) -> int | None:
        """Number of iterations without improvement after which a fit, or a visit to a bite, stops; None without such a rule."""
        if self.arcbites is None or not self.arcbites.is_watched:
            return self.early_stopping_rounds
        return self.arcbites.early_stopping_rounds or self.early_stopping_rounds or DEFAULT_ROUNDS

    def with_features(self, n_features: int, *, is_classification: bool) -> Parameters:
        """Return the parameters with the share of the features in place of the names of `max_features`."""
        wanted = self.max_features
        if wanted == "auto":
            wanted = 1.0 if not self.is_forest else "sqrt" if is_classification else 0.5
        if wanted == "sqrt":
            wanted = max(math.isqrt(n_features), 1) / n_features
            if math.ceil(wanted * n_features) > max(math.isqrt(n_features), 1):  # rounded up
                wanted = math.nextafter(wanted, 0.0)
        return self if wanted == self.max_features else replace(self, max_features=float(wanted))

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters as JSON types, for the model file."""
        stored = {field.name: getattr(self, field.name) for field in fields(self)} | {"loss": self.loss_name}
        arcbites = stored.pop("arcbites")
        if arcbites is not None:
            stored["arcbites"] = arcbites.to_dict()
        for name in _STORED_IF_SET:
            if stored[name] == type(self).__dataclass_fields__[name].default:
                del stored[name]
        loss_of = _loss_of_options()  # the parameters of other losses are not stored
        return {name: value for name, value in stored.items() if name not in loss_of or loss_of[name] in self._losses}

    @property
    def _losses(self) -> tuple[Any, ...]:
        return tuple(self.loss) if isinstance(self.loss, list | tuple) else (self.loss,)

    @property
    def loss_name(self) -> str:
        """The name of the loss, or those of several."""
        return ", ".join(dict.fromkeys(loss if isinstance(loss, str) else loss.name for loss in self._losses))

    def with_loss(self, name: str) -> Parameters:
        """Return the parameters with the name of a loss in place of "auto"; a custom loss stays."""
        return replace(self, loss=name) if isinstance(self.loss, str) and self.loss != name else self


class TreeParameters(TypedDict, total=False):
    """The keywords that set `Parameters` other than `loss` and `random_state`, and `SHOWN_ALIASES`, for type checkers."""

    boosting: str
    quantile: float | Sequence[float] | None
    huber_alpha: float
    expectile: float | None
    tweedie_power: float
    learning_rate: float | Sequence[float] | Callable[[int], float]
    max_iter: int | str
    max_leaf_nodes: int | None
    max_depth: int | None
    min_samples_leaf: int
    min_hessian: float
    l2_regularization: float
    l1_regularization: float
    leaf_penalty: float
    min_gain: float
    subsample: float
    influence_trimming: float | None
    max_features: float | str
    monotonic_cst: Mapping[str, int] | Sequence[int] | None
    interaction_cst: Sequence[Sequence[str | int]] | str | None
    max_delta_step: float | None
    criterion: str
    step: str
    leaf_estimation: str | None
    growth: str
    grow_policy: str | None
    multi_strategy: str
    split_proposal: str
    max_bins: int
    categorical_smoothing: float
    categorical_l2: float
    max_category_group: int
    min_category_hessian: float
    early_stopping_rounds: int | None
    arcbites: ArcBites | Mapping[str, Any] | bool | None


class LearningParameters(TreeParameters, total=False):
    """The type of ``**parameters`` of the functions that train."""

    loss: Any  # a name, or a dboost.losses.Loss
    random_state: Any  # an integer, None, or a generator of NumPy


def learning_keywords() -> list[inspect.Parameter]:
    """Return the keywords of `LearningParameters` as a signature shows them; an alias follows its parameter."""
    types, keywords = LearningParameters.__annotations__, []
    for parameter in fields(Parameters):
        aliases = [alias for alias, ours in SHOWN_ALIASES.items() if ours == parameter.name]
        for name, default in ((parameter.name, parameter.default), *((alias, None) for alias in aliases)):
            shown = types[name].__forward_arg__
            keywords.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=shown))
    return keywords


def shows_parameters(function: F) -> F:
    """Decorate a function: its signature has the parameters of learning in place of ``**parameters``, and its docstring
    describes them after this entry."""
    signature = inspect.signature(function)
    *parameters, _ = signature.parameters.values()
    function.__signature__ = signature.replace(parameters=[*parameters, *learning_keywords()])  # type: ignore[attr-defined]
    if function.__doc__ is not None:  # `python -OO`
        function.__doc__ = function.__doc__.replace("\n\n    Returns\n", f"\n{documentation()}\n\n    Returns\n", 1)
    return function


def entry(name: str, values: Any, default: Any, meaning: str) -> str:
    """Return an entry of numpydoc for the docstring of a class."""
    shown = f'"{default}"' if isinstance(default, str) else default
    lines = [f"    {name} : {values}, default {shown}", " " * 7]
    for word in meaning.split():  # at every import, so not by `textwrap`, which takes five times as long
        if len(lines[-1]) + len(word) >= 128:
            lines.append(" " * 7)
        lines[-1] += f" {word}"
    return "\n".join(lines)


def documentation(without: Collection[str] = ()) -> str:
    """Return the entries of the parameters; without : names to leave out."""
    entries = []
    for parameter in fields(Parameters):
        meaning = parameter.metadata["meaning"]
        aliases = [f"`{alias}`" for alias, ours in SHOWN_ALIASES.items() if ours == parameter.name]
        meaning += f" Alias: {', '.join(aliases)}." if aliases else ""
        if parameter.name not in without:
            entries.append(entry(parameter.name, parameter.metadata["values"], parameter.default, meaning))
    return "\n".join(entries)


Parameters.__doc__ = f"""Parameters of learning, of all functions that train and of the estimators.

    Attributes
    ----------
{documentation()}

    Raises
    ------
    ParameterError
        When a value is out of range, or parameters exclude each other.
    """


def canonical(keywords: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return keywords with `SHOWN_ALIASES` and `VALUES` replaced by ours. None counts as not given for an alias, and for one of
    `NONES`.

    defaults : values of keywords that count as not given, by name; default none. None always counts as not given.

    Raises
    ------
    ParameterError
        If a keyword and an alias of it are both given.
    """
    canonical_values = {name: value for name, value in keywords.items() if name not in SHOWN_ALIASES}
    for name in NONES:
        if name in canonical_values and canonical_values[name] is None:
            del canonical_values[name]
            if defaults is not None:
                canonical_values[name] = defaults[name]
    for alias, name in SHOWN_ALIASES.items():
        value, other_value = keywords.get(alias), canonical_values.get(name)
        if value is None:
            continue
        if other_value is not None and not _equals(other_value, None if defaults is None else defaults.get(name)):
            raise ParameterError(
                f"{alias}={shortened(value)} and {name}={shortened(other_value)} are the same parameter: give one of them"
            )
        canonical_values[name] = our_value(alias, value)
    return {name: our_value(name, value) for name, value in canonical_values.items()}  # those of `continue_steps`


def with_seed(learning: dict[str, Any]) -> dict[str, Any]:
    """Return parameters with an integer as `random_state`: the given one, or one that is drawn.

    None draws it from NumPy's global generator, as in scikit-learn; a RandomState or a Generator draws it itself.
    """
    seed = learning.get("random_state", 0)
    if seed is None:
        seed = np.random.mtrand._rand
    draw = getattr(seed, "integers", getattr(seed, "randint", None))
    return learning if draw is None else learning | {"random_state": int(draw(2**32, dtype=np.uint64))}


def _equals(value: Any, default: Any) -> bool:
    return value is default or (isinstance(value, str | Real) and isinstance(default, str | Real) and value == default)


def make_parameters(keywords: dict[str, Any]) -> Parameters:
    """Return parameters from keywords.

    Raises
    ------
    ParameterError
        For unknown names (with what to use), and values out of range.
    """
    known = {field.name for field in fields(Parameters)}
    for name in keywords:
        if name not in known:
            raise ParameterError(f"unknown parameter {name!r}{explanation(name, known)}")
    if keywords.get("boosting") == FOREST:
        keywords = FOREST_DEFAULTS | keywords
    return Parameters(**{name: _plain(value) for name, value in keywords.items()})


def _plain(value: Any) -> Any:
    """Convert NumPy values to Python ones."""
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(_plain, value), key=_order)
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return list(map(_plain, value))
    return value


def _order(item: Any) -> Any:
    """Return the sort key of an item of a set: numbers come before names."""
    return (0, item, "") if isinstance(item, Real) else (1, 0, str(item))
