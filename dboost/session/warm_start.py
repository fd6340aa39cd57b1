"""Where a fit begins: from nothing, from the model of another fit, or from its own checkpoint.

Rows begin with the score of a *model* (or with the best constant, where there is none), to which its trees are added one by
one, in their order: the very sums that training makes. So whoever goes on from a model goes on as if there had been no break.

What distinguishes the three ways of going on is whose trees the model's are.

* A *warm start* goes on with a fit on its own data, up to `max_iter` iterations in total.
* A *continuation* begins a new fit, with `max_iter` iterations of its own, where a model of other data ended.
* A fit that *resumes* has grown some of the trees itself before it was interrupted. Whatever is found out at the beginning of
  a fit (units, scales) is found out from scores without these, so that it is what it was the first time.

Raw scores of rows under a model that exists already.

The model walks over the rows chunk by chunk, adding its trees in their order: ``((baseline + offset) + v1) + v2 + …``. These
are the very sums that training makes, so going on from here is the same, to the last bit, as never having stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dboost.data import CategoryColumn, Chunk, Table
from dboost.data.binning import Binning
from dboost.errors import DataError, ParameterError
from dboost.losses import Loss, from_dict, is_custom
from dboost.model.ensemble import Ensemble
from dboost.model.forest import FlatEnsemble, Range
from dboost.model.model_edits import widen
from dboost.schema import Feature
from dboost.session.target import Target


@dataclass(frozen=True, eq=False)
class WarmStart:
    """Where a fit begins.

    Attributes
    ----------
    model : Ensemble or None
        The trees that rows' scores hold before the first iteration that is still to come.
    n_earlier : int
        How many of its iterations belong to earlier fits; early stopping never drops these.
    is_new_source : bool
        Whether the fit goes on from a model of other data.
    resumes : bool
        Whether the iterations beyond `n_earlier` are this fit's own.
    keeps_bins : bool
        Whether the model's split points are the candidates of the new trees too.
    damps : bool
        Whether the new trees' steps are damped, see `training.plan`.
    """

    model: Ensemble | None = None
    n_earlier: int = 0
    is_new_source: bool = False
    resumes: bool = False
    keeps_bins: bool = False
    damps: bool = False

    @classmethod
    def same_data(cls, model: Ensemble | None) -> WarmStart:
        """From a model of the same data, or from nothing."""
        return cls() if model is None else cls(model, model.n_iterations)

    @classmethod
    def continuation(cls, model: Ensemble, bins: str = "new", steps: str = "damped") -> WarmStart:
        """From a model of other data; bins : "new" or "kept", steps : "damped" or "full"."""
        check_options(bins, steps)
        if bins == "kept" and not model.edges:
            raise ParameterError("continue_bins='kept': the model to continue does not tell its bins")
        return cls(model, model.n_iterations, True, keeps_bins=bins == "kept", damps=steps == "damped")

    def resumed(self, model: Ensemble) -> WarmStart:
        """The same fit with the model of its checkpoint."""
        return replace(self, model=model, resumes=True)

    def widened(self, features: tuple[Feature, ...]) -> WarmStart:
        """The same for features with levels that the model has not met."""
        return self if self.model is None or not self.is_new_source else replace(self, model=widen(self.model, features))

    @property
    def like(self) -> dict[str, Any]:
        """How a table is opened whose features are the model's (see `open_table`)."""
        if not self.is_new_source:
            return {}
        assert self.model is not None
        return {"like": self.model.features, "extend_categories": True}

    def binning(self, features: tuple[Feature, ...]) -> Binning:
        """The model's own split points."""
        assert self.model is not None
        return Binning(features, self.model.edges)

    @property
    def baseline(self) -> np.ndarray:
        """Raw scores that the model begins with: float64[n_outputs]."""
        assert self.model is not None
        return self.model.baseline

    @property
    def n_before(self) -> int:
        """Iterations that the scores hold already."""
        return 0 if self.model is None else self.model.n_iterations

    def last_iteration(self, max_iter: int) -> int:
        """The number of the last iteration, if nothing stops the fit."""
        return max_iter + self.n_earlier if self.is_new_source else max_iter


def checked_decay(decay: Any) -> float:
    """What is kept of the old leaf values."""
    if isinstance(decay, bool) or not isinstance(decay, int | float) or not 0 <= decay < 1:
        raise ParameterError(f"decay={decay!r} must be a number of at least 0 and below 1")
    return float(decay)


def keywords_for(model: Ensemble, given: dict[str, Any], own: Loss | None = None) -> dict[str, Any]:
    """Keywords of a fit that continues a model: with ``loss="auto"`` the model's own loss is meant, options and all.

    own : the loss, where it is one of the user's and at hand.
    """
    if given.get("loss", "auto") != "auto":
        return given
    loss = from_dict(model.loss) if own is None else own
    options = {name: model.loss[name] for name in loss.options if name in model.loss}
    return options | given | {"loss": loss if is_custom(loss) else loss.name}


def check_options(bins: Any, steps: Any) -> None:
    """Refuse what `continue_bins` and `continue_steps` cannot be."""
    if bins not in ("new", "kept"):
        raise ParameterError(f"continue_bins={bins!r} must be 'new' or 'kept'")
    if steps not in ("damped", "full"):
        raise ParameterError(f"continue_steps={steps!r} must be 'damped' or 'full'")


def without_model(bins: Any = "new", steps: Any = "damped") -> WarmStart:
    """`COLD_START`; refuses a `continue_bins` or `continue_steps` that only a model to continue would give a meaning."""
    check_options(bins, steps)
    for name, value, default in (("continue_bins", bins, "new"), ("continue_steps", steps, "damped")):
        if value != default:
            raise ParameterError(f"{name}={value!r} needs start_from, the model to continue")
    return COLD_START


#: Parameters without a meaning where leaf values are estimated anew, and their defaults.
_IDLE_IN_REFIT: dict[str, Any] = {
    "eval_set": None, "eval_metric": None, "features": None, "categorical_features": "from_dtype", "callbacks": None,
    "progress": None, "memory_limit": None, "continue_bins": "new", "continue_steps": "damped", "checkpoint": None,
    "checkpoint_every": 10,
}  # fmt: skip


def idle_in_refit(given: dict[str, Any]) -> list[str]:
    """Keywords that a user gave and that have nothing to do with ``refit_leaves=True``, which adds no trees."""

    def is_given(name: str, value: Any) -> bool:
        plain = _IDLE_IN_REFIT[name]
        if name == "callbacks":  # functions, or one; none at all is an empty sequence
            return callable(value) or bool(value)
        # Without progress there is nothing to show, and nothing is shown.
        return not (value is plain or (isinstance(value, str | int) and value == plain) or (name == "progress" and not value))

    return [name for name, value in given.items() if name in _IDLE_IN_REFIT and is_given(name, value)]


def checked_source_name(source_name: Any) -> str | None:
    """What the user calls the data."""
    if source_name is not None and not isinstance(source_name, str):
        raise ParameterError(f"source_name={source_name!r} must be text")
    return source_name


#: A fit that begins from nothing.
COLD_START = WarmStart()


def row_matrices(table: Table, rows: np.ndarray | None) -> Iterator[np.ndarray]:
    """The table's rows, or some of them (int64, ascending), chunk by chunk as matrices that trees can walk over."""
    start = 0
    for i, length in enumerate(table.lengths):
        own = None
        if rows is not None:
            low, high = np.searchsorted(rows, (start, start + length))
            own = rows[low:high] - start
        for _, some, chunk in table.slices(i, own):
            yield matrix_of(chunk) if some is None else matrix_of(chunk)[some]
        start += length


def row_matrix(table: Table, rows: np.ndarray | None) -> np.ndarray:
    """The same as one matrix."""
    parts = list(row_matrices(table, rows))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def starting_scores(
    baseline: np.ndarray,
    warm_start: WarmStart,
    table: Table,
    rows: np.ndarray | None,
    n_threads: int,
    iterations: Range | None = None,
) -> np.ndarray:
    """Raw scores that some rows of a table, or all, begin with.

    Parameters
    ----------
    baseline : float64[n_outputs]
    warm_start : Origin
        With the model whose trees are added.
    table : Table
        Its offsets are added to the baseline.
    rows : int64[...], ascending, or None
    n_threads : int
    iterations : (first, last), optional
        Only those of the model's iterations.

    Returns
    -------
    float64[n], or float64[n_outputs, n] where there are several outputs
    """
    n = table.n_rows if rows is None else len(rows)
    scores = np.repeat(baseline[:, None], n, axis=1)
    if table.offset is not None:
        scores += table.offset if rows is None else table.offset[rows]
    add_trees(scores, warm_start, table, rows, n_threads, iterations)
    return scores[0] if len(baseline) == 1 else scores


def add_trees(
    scores: np.ndarray,
    warm_start: WarmStart,
    table: Table,
    rows: np.ndarray | None,
    n_threads: int,
    iterations: Range | None = None,
) -> None:
    """Add the trees of a model, or of some of its iterations, to raw scores (as `starting_scores` returns) in place."""
    first, last = iterations or (0, warm_start.n_before)
    if warm_start.model is None or first == last:
        return
    flat = FlatEnsemble(warm_start.model)
    scores = np.atleast_2d(scores)
    start = 0
    for block in row_matrices(table, rows):
        add_block(scores[:, start : start + len(block)], flat, block, (first, last), n_threads)
        start += len(block)


def add_block(scores: np.ndarray, flat: FlatEnsemble, block: np.ndarray, iterations: Range, n_threads: int) -> None:
    """The same for the rows of one matrix; scores : float64[n_outputs, n]."""
    of_rows = np.ascontiguousarray(scores.T)
    flat.add_to(of_rows, block, iterations, n_threads)
    scores[:] = of_rows.T


def check_continues(model: Ensemble, features: tuple[Feature, ...], target: Target) -> None:
    """Refuse to continue a model on data that it does not speak about.

    Raises
    ------
    DataError
        Naming the first feature or class that differs.
    """
    old, new = model.features, features
    if len(old) != len(new):
        raise DataError(f"the model to continue has {len(old)} features, the data have {len(new)}")
    for before, now in zip(old, new, strict=True):
        if before != now:
            what = "other levels than" if before.name == now.name else f"the place of {before.name!r} in"
            raise DataError(f"the data do not continue the model: column {now.name!r} has {what} the model")
    if model.classes != target.classes:
        raise DataError(f"the data do not continue the model: it knows the classes {model.classes}, they {target.classes}")
    check_loss(model, target.loss)


def check_loss(model: Ensemble, loss: Loss) -> None:
    """Refuse to continue a model with another loss than its own."""
    if not _same_loss(model, loss):
        told = [f"loss {one['name']!r}" + _loss_options(one) for one in (model.loss, loss.to_dict())]
        raise DataError(f"the model to continue was trained with {told[0]}, not {told[1]}")


def _loss_options(loss: dict[str, Any]) -> str:
    known = ", ".join(f"{name}={value!r}" for name, value in loss.items() if name != "name")
    return f" ({known})" if known else ""


def _same_loss(model: Ensemble, loss: Loss) -> bool:
    # The model may know more: what its first iteration found out.
    return model.loss == model.loss | loss.to_dict()


def matrix_of(chunk: Chunk) -> np.ndarray:
    """Numbers as they are, categories as codes, NaN where missing."""
    if chunk.matrix is not None:
        return chunk.matrix
    columns = [_numbers(column) if isinstance(column, CategoryColumn) else column for column in chunk.columns]
    matrix = np.empty((chunk.n_rows, len(columns)), np.result_type(np.float32, *(column.dtype for column in columns)))
    for j, column in enumerate(columns):
        matrix[:, j] = column
    return matrix


def _numbers(column: CategoryColumn) -> np.ndarray:
    codes = column.codes.astype(np.float32)
    codes[column.codes < 0] = np.nan
    return codes
