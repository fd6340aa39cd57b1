"""Arcbites: how a fit goes through data that do not fit in memory, one random subset after another.

A *bite* is a subset of the rows, drawn at random over the whole data, that does fit. Boosting starts at the current scores of
a bite's rows and goes on with them for some trees, or as long as an independent test set says that the combined model gets
better; then comes the next bite. (L. Breiman, "Pasting bites together for prediction in large data sets and on-line", 1997;
J. Friedman, "Greedy function approximation", 2001, section 10.)

This is the record of the user's choice; `training.arcbites` carries it out.

Every parameter that shapes learning: its default, its meaning, its limits. Validated once, then frozen.

`Parameters` is what travels: to the trainer, to engines, into the model file. Parameters that belong to a later version are
refused by name, never ignored.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import asdict, dataclass, fields, replace
from numbers import Integral, Real
from typing import Any

from dboost.errors import ParameterError

CYCLIC, RANDOM, ADAPTIVE = "cyclic", "random", "adaptive"
ORDERS = (RANDOM, CYCLIC, ADAPTIVE)
#: Bites where neither their number nor a limit of the memory is given.
DEFAULT_BITES = 10
#: Iterations without improvement after which a bite is left, where neither the record nor the fit says.
DEFAULT_ROUNDS = 10


@dataclass(frozen=True)
class ArcBites:
    """Sequential boosting on random subsets of the rows.

    Every row belongs to one bite, by a hash of the seed and its number among all rows; so the bites are random subsets of
    about the same size, whatever the partitions, and on a cluster every worker has a part of each. One bite at a time is in
    memory and trained on. When a bite is entered its rows' scores take in the trees that they have not seen.

    Without `trees_per_visit`, or with `early_stopping_rounds`, an independent test set decides when to leave a bite: after so
    many iterations in which its metric has not improved. The model is cut back to the best iteration so far, which may be
    the one that the bite began with, and the next bite goes on from there. The fit ends after all visits, after a whole
    cycle of bites without improvement, or when `max_iter` iterations have been grown, those cut back included.

    Parameters
    ----------
    n_bites : int >= 1 or None
        None: as many as it takes for one to fit in `memory_limit`; 10 without a limit.
    trees_per_visit : int >= 1 or None
        Iterations on a bite before the next one, at most. With this alone every visit grows so many, and no test set is
        needed.
    visits : int >= 1 or None
        How often each bite is visited (with order="adaptive", on average). None: until `max_iter`.
    order : "random", "cyclic" or "adaptive"
        Another random order in every cycle; the same order; or always the bite (other than the one just left) whose rows
        have the highest mean loss at present. To know that, adaptive order reads all bites before every visit.
    early_stopping_rounds : int >= 1 or None
        Iterations without improvement on the test set (the last metric of the last evaluation set) after which a bite is
        left. None, without `trees_per_visit`: the fit's own `early_stopping_rounds`, else 10.
    parts : int >= 1
        The rows are divided into so many parts for each bite, and in every cycle the parts are put together to bites in
        another way. With one part a row has the same company at every visit, and many cycles fit what is particular to it;
        with two or more they do so later. Not with order="adaptive", which knows bites by their loss.

    Raises
    ------
    ParameterError
    """

    n_bites: int | None = None
    trees_per_visit: int | None = None
    visits: int | None = 1
    order: str = RANDOM
    early_stopping_rounds: int | None = None
    parts: int = 1

    def __post_init__(self) -> None:
        for name in ("n_bites", "trees_per_visit", "visits", "early_stopping_rounds"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
                raise ParameterError(f"arcbites: {name}={value!r} must be an integer of at least 1 or None")
            object.__setattr__(self, name, int(value))
        if isinstance(self.parts, bool) or not isinstance(self.parts, Integral) or self.parts < 1:
            raise ParameterError(f"arcbites: parts={self.parts!r} must be an integer of at least 1")
        object.__setattr__(self, "parts", int(self.parts))
        if self.parts > 1 and self.order == ADAPTIVE:
            raise ParameterError(
                f"arcbites: parts={self.parts} makes other bites in every cycle, order='adaptive' wants the same"
            )
        if self.order not in ORDERS:
            raise ParameterError(f"arcbites: order={self.order!r} must be one of {', '.join(map(repr, ORDERS))}")

    @property
    def n_parts(self) -> int:
        """Parts of all bites together."""
        assert self.n_bites is not None
        return self.n_bites * self.parts

    @property
    def is_watched(self) -> bool:
        """Whether a test set decides when to leave a bite."""
        return self.trees_per_visit is None or self.early_stopping_rounds is not None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_arcbites(given: Any) -> ArcBites | None:
    """What a user may write for ``arcbites=``: a record, its fields as a dict, True for the defaults, False or None.

    Raises
    ------
    ParameterError
    """
    if given is None or isinstance(given, ArcBites):
        return given
    if isinstance(given, bool):
        return ArcBites() if given else None
    if isinstance(given, dict):
        unknown = sorted(set(given) - set(ArcBites.__dataclass_fields__))
        if unknown:
            known = ", ".join(ArcBites.__dataclass_fields__)
            raise ParameterError(f"arcbites: unknown field {unknown[0]!r}; there are: {known}")
        return ArcBites(**given)
    raise ParameterError(f"arcbites={given!r:.60} must be a dboost.ArcBites, a dict of its fields, True or None")


LOSSES = (
    "auto",
    "squared_error",
    "absolute_error",
    "quantile",
    "huber",
    "poisson",
    "gamma",
    "tweedie",
    "log_loss",
    "exponential",
)
#: Parameters of single losses: the loss, and the value that says nothing.
OF_ONE_LOSS: dict[str, tuple[str, Any]] = {
    "quantile": ("quantile", None),
    "huber_alpha": ("huber", 0.9),
    "tweedie_power": ("tweedie", 1.5),
}


@dataclass(frozen=True)
class Parameters:
    """How a model is trained. The names and defaults are those of `dboost.fit`.

    Attributes
    ----------
    loss : str, or a dboost.losses.Loss of the user's own
        "squared_error", "absolute_error", "quantile", "huber", "poisson", "gamma" or "tweedie" for numbers, "log_loss" or
        "exponential" (two classes only) for classes; "auto": log_loss for truth values, text, categories and zeros and ones,
        else squared_error.
    quantile : float between 0 and 1
        The level, for loss="quantile" only, which needs it.
    huber_alpha : float between 0 and 1
        The share of rows whose residuals count as small, for loss="huber" only.
    tweedie_power : float between 1 and 2
        p of the variance μ^p, for loss="tweedie" only.
    learning_rate : float > 0
        What each tree's leaf values are multiplied by.
    max_iter : int >= 1
        Iterations (trees per output).
    max_leaf_nodes : int >= 2 or None
        Leaves of a tree.
    max_depth : int >= 1 or None
        Splits on the longest path.
    min_samples_leaf : int >= 1
        Rows (of positive weight) in a leaf.
    min_hessian : float >= 0
        Sum of Hessians in a leaf.
    l2_regularization, l1_regularization : float >= 0
        λ and α of the leaf value -T_α(G) / (H + λ).
    leaf_penalty : float >= 0
        γ: what a split must gain for its additional leaf.
    min_gain : float >= 0
        What a split must gain beyond that.
    subsample : float, 0 < … <= 1
        Share of the rows that take part in each iteration's trees.
    influence_trimming : float between 0 and 1, or None
        α: the rows of least influence (second derivative) sit out a tree, as many as have at most this share of all
        influence. For the log loss only.
    max_features : float, 0 < … <= 1
        Share of the features that are looked at for each split, chosen anew for every node.
    monotonic_cst : dict of str to int, list of int, or None
        By name or one for each feature: 1 where the prediction may only rise with the feature, -1 only fall, 0 either.
    interaction_cst : list of lists of names or numbers, "pairwise", "no_interactions" or None
        Features that may meet on a path; those not listed form a group of their own.
    max_delta_step : float > 0 or None
        Bound of a leaf's step before the learning rate.
    criterion : "newton" or "gradient"
        What trees fit: Newton's steps, with Hessians as weights, or the gradients by least squares.
    step : "leaf", "line_search" or "constant"
        What is added: a constant for each leaf that makes the loss small, the tree times the best multiplier, or the tree.
    growth : "best_first" or "depth_wise"
    split_proposal : "global", "tree", "node" or "exact"
        When the candidates for splits are proposed: once, for every tree by its rows' Hessians, after every split by those of
        each node, or never: every distinct value is one (65,535 at most). See `dboost.trees.bin_proposal`.
    max_bins : int, 2…255
        Bins of a numeric feature, without the one for missing values.
    categorical_smoothing, categorical_l2 : float >= 0
        Added to Hessian sums when levels are ordered, and when categorical splits are judged.
    max_category_group : int >= 1
        Levels on the smaller side of a categorical split.
    min_category_hessian : float >= 0
        Levels with less (and with less than 2 % of their node) stay on the right side of categorical splits.
    early_stopping_rounds : int >= 1 or None
        Stop when the (last) metric of the (last) evaluation set has not improved for so many iterations.
    arcbites : dboost.ArcBites, True or None
        Train on one random subset of the rows after another; True: with the defaults of `ArcBites`.
    random_state : int
    """

    loss: Any = "auto"
    quantile: float | None = None
    huber_alpha: float = 0.9
    tweedie_power: float = 1.5
    learning_rate: float = 0.1
    max_iter: int = 100
    max_leaf_nodes: int | None = 31
    max_depth: int | None = None
    min_samples_leaf: int = 20
    min_hessian: float = 1.0
    l2_regularization: float = 1.0
    l1_regularization: float = 0.0
    leaf_penalty: float = 0.0
    min_gain: float = 0.0
    subsample: float = 1.0
    influence_trimming: float | None = None
    max_features: float = 1.0
    monotonic_cst: Any = None
    interaction_cst: Any = None
    max_delta_step: float | None = None
    criterion: str = "newton"
    step: str = "leaf"
    growth: str = "best_first"
    split_proposal: str = "global"
    max_bins: int = 255
    categorical_smoothing: float = 10.0
    categorical_l2: float = 3.0
    max_category_group: int = 32
    min_category_hessian: float = 20.0
    early_stopping_rounds: int | None = None
    arcbites: ArcBites | None = None
    random_state: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.loss, str) or not hasattr(self.loss, "inverse_link"):
            _choice(self, "loss", LOSSES, "or a dboost.losses.Loss of your own")
        elif isinstance(self.loss, type):
            raise ParameterError(f"loss is the class {self.loss.__name__}: give an instance, {self.loss.__name__}()")
        elif self.loss.name in LOSSES:
            raise ParameterError(f"a loss of your own must not be called {self.loss.name!r}, which is one of dboost's")
        for name, (loss, neutral) in OF_ONE_LOSS.items():
            if getattr(self, name) != neutral and self.loss != loss:
                raise ParameterError(f"{name}={getattr(self, name)!r} is for loss={loss!r}, not for loss={self.loss_name!r}")
        if self.loss == "quantile" and self.quantile is None:
            raise ParameterError("loss='quantile' needs the level: quantile=0.9, say")
        _number(self, "quantile", above=0.0, below=1.0, optional=True)
        _number(self, "huber_alpha", above=0.0, below=1.0)
        _number(self, "tweedie_power", above=1.0, below=2.0)
        _choice(self, "criterion", ("newton", "gradient"))
        _choice(self, "step", ("leaf", "line_search", "constant"))
        _choice(self, "growth", ("best_first", "depth_wise"))
        _choice(self, "split_proposal", ("global", "tree", "node", "exact"))
        _number(self, "learning_rate", above=0.0)
        _integer(self, "max_iter", 1)
        _integer(self, "max_leaf_nodes", 2, optional=True)
        _integer(self, "max_depth", 1, optional=True)
        _integer(self, "min_samples_leaf", 1)
        for name in ("min_hessian", "l2_regularization", "l1_regularization", "leaf_penalty", "min_gain"):
            _number(self, name, least=0.0)
        _number(self, "max_delta_step", above=0.0, optional=True)
        _number(self, "influence_trimming", above=0.0, below=1.0, optional=True)
        _number(self, "subsample", above=0.0, most=1.0)
        _number(self, "max_features", above=0.0, most=1.0)
        if self.monotonic_cst is not None and not isinstance(self.monotonic_cst, dict | list):
            raise ParameterError(
                f"monotonic_cst={_short(self.monotonic_cst)} must be a dict of names or one number per feature"
            )
        _groups(self.interaction_cst)
        if self.monotonic_cst is not None and self.step != "leaf":
            raise ParameterError("monotonic_cst needs step='leaf', since other steps move all leaves at once")
        _integer(self, "max_bins", 2, 255)
        if self.split_proposal == "exact" and self.max_bins != 255:
            raise ParameterError(f"max_bins={self.max_bins} says nothing with split_proposal='exact': leave it out")
        for name in ("categorical_smoothing", "categorical_l2", "min_category_hessian"):
            _number(self, name, least=0.0)
        _integer(self, "max_category_group", 1)
        _integer(self, "early_stopping_rounds", 1, optional=True)
        object.__setattr__(self, "arcbites", read_arcbites(self.arcbites))
        _integer(self, "random_state", 0, 2**63 - 1)
        for field in fields(self):
            value = getattr(self, field.name)
            if str(field.type).startswith("float") and type(value) is int:
                object.__setattr__(self, field.name, float(value))  # 1 and 1.0 give the same file

    def to_dict(self) -> dict[str, Any]:
        """Parameters as JSON types, for the model file."""
        stored = {field.name: getattr(self, field.name) for field in fields(self)} | {"loss": self.loss_name}
        arcbites = stored.pop("arcbites")
        if arcbites is not None:
            stored["arcbites"] = arcbites.to_dict()
        # The parameters of other losses say nothing.
        return {name: value for name, value in stored.items() if OF_ONE_LOSS.get(name, (self.loss_name,))[0] == self.loss_name}

    @property
    def loss_name(self) -> str:
        return self.loss if isinstance(self.loss, str) else self.loss.name

    def with_loss(self, name: str) -> Parameters:
        """The same, where "auto" turned out to be the loss of that name."""
        return replace(self, loss=name) if isinstance(self.loss, str) else self


#: Keywords of `dboost.fit` that later versions will support, with the only value that means the same as not having them.
RESERVED: dict[str, Any] = {}


def make_parameters(given: dict[str, Any]) -> Parameters:
    """Parameters from keywords.

    Raises
    ------
    ParameterError
        Unknown names (with the closest known ones), values out of range, and values that need a later version.
    """
    known = {field.name for field in fields(Parameters)}
    for name, value in given.items():
        if name in RESERVED:
            neutral = RESERVED[name]
            if not (value is neutral or (isinstance(value, Real | str) and value == neutral)):
                raise ParameterError(f"{name}={_short(value)} is not supported by this version of dboost")
        elif name not in known:
            near = difflib.get_close_matches(name, [*known, *RESERVED], n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise ParameterError(f"unknown parameter {name!r}{hint}")
    return Parameters(**{name: _plain(value) for name, value in given.items() if name in known})


def _short(value: Any) -> str:
    """A value in an error's sentence: itself, or for a table or the like what it is."""
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"<{type(value).__name__}>"


def _plain(value: Any) -> Any:
    """NumPy scalars as Python ones."""
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(_plain, value), key=lambda item: (isinstance(item, str), item))
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return list(map(_plain, value))
    return value


def _groups(given: Any) -> None:
    if given is None or given in ("pairwise", "no_interactions"):
        return
    if not isinstance(given, list) or not all(isinstance(group, list) for group in given):
        raise ParameterError(
            f"interaction_cst={_short(given)} must be a list of groups of names or numbers, 'pairwise' or 'no_interactions'"
        )


def _choice(record: Parameters, name: str, choices: tuple[str, ...], more: str = "") -> None:
    value = getattr(record, name)
    if value not in choices:
        raise ParameterError(f"{name}={value!r} must be one of {', '.join(map(repr, choices))} {more}".rstrip())


def _integer(record: Parameters, name: str, least: int, most: int | None = None, *, optional: bool = False) -> None:
    value = getattr(record, name)
    if value is None and optional:
        return
    limits = f"of at least {least}" if most is None else f"between {least} and {most}"
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        raise ParameterError(f"{name}={value!r} must be an integer {limits}{' or None' if optional else ''}")


def _number(
    record: Parameters,
    name: str,
    *,
    least: float | None = None,
    above: float | None = None,
    below: float = math.inf,
    most: float = math.inf,
    optional: bool = False,
) -> None:
    value = getattr(record, name)
    if value is None and optional:
        return
    wrong = isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)
    if (
        wrong
        or (least is not None and value < least)
        or (above is not None and value <= above)
        or value >= below
        or value > most
    ):
        limit = f"at least {least:g}" if least is not None else f"greater than {above:g}"
        limit += f" and less than {below:g}" if below < math.inf else ""
        limit += f" and at most {most:g}" if most < math.inf else ""
        raise ParameterError(f"{name}={value!r} must be a number {limit}{' or None' if optional else ''}")
