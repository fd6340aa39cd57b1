"""Warm starts: the model from which a fit starts, and the raw scores of rows by that model.

A fit starts from nothing, from an existing model, or from its own checkpoint. There are three kinds of start with a model:

* A *warm start* continues a fit on the same data, up to `max_iter` iterations in total.
* A *continuation* starts a new fit with `max_iter` iterations of its own from a model of other data.
* A *resumed* fit has grown some of the trees itself before it was interrupted. Units and scales are derived from scores without
  these trees, so they are the same as in the first run.

The first raw score of a row is ``((baseline + offset) + v1) + v2 + …``: the trees of the model are added one by one in their
order, chunk by chunk. Training computes the same floating-point sums, so a continued fit gives the same model, to the last bit,
as an uninterrupted fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dboost.data import Chunk, Table
from dboost.data.columns.binning import Binning
from dboost.data.columns.chunk import matrix_of, plain
from dboost.data.columns.labels import listed
from dboost.data.columns.sparse import has_sparse
from dboost.errors import DataError, ParameterError
from dboost.losses import BUILT_IN, BaseLoss, Loss, from_dict, keywords_of
from dboost.model.ensemble import Ensemble, FlatEnsemble, Range, widen
from dboost.params import FOREST
from dboost.schema import Feature
from dboost.session.target import Target
from dboost.tuning import tuning


@dataclass(frozen=True, eq=False)
class WarmStart:
    """The start of a fit."""

    model: Ensemble | None = None  # its trees are included in the first scores of the rows
    n_earlier: int = 0  # number of its iterations that belong to earlier fits; early stopping never drops these
    is_new_source: bool = False  # whether the fit continues a model of other data
    resumes: bool = False  # whether the iterations beyond `n_earlier` belong to this fit
    keeps_bins: bool = False  # whether new trees use the model's split points
    damps: bool = False  # whether the steps of new trees are damped, see `training.damped_steps`

    @classmethod
    def same_data(cls, model: Ensemble | None) -> WarmStart:
        """Return the start from a model of the same data, or from nothing."""
        return cls() if model is None else cls(model, model.n_iterations)

    @classmethod
    def continuation(cls, model: Ensemble, bins: str = "new", steps: str = "damped") -> WarmStart:
        """Return the start from a model of other data; bins : "new" or "kept", steps : "damped" or "full"."""
        check_options(bins, steps)
        if bins == "kept" and not model.edges:
            raise ParameterError("continue_bins='kept': the model to continue does not contain its split candidates")
        return cls(model, model.n_iterations, True, keeps_bins=bins == "kept", damps=steps == "damped")

    def resumed(self, model: Ensemble) -> WarmStart:
        """Return the start of the same fit with the model of its checkpoint."""
        return replace(self, model=model, resumes=True)

    def widened(self, features: tuple[Feature, ...]) -> WarmStart:
        """Return the start with the model extended by categories that are new in `features`."""
        return self if self.model is None or not self.is_new_source else replace(self, model=widen(self.model, features))

    @property
    def like(self) -> dict[str, Any]:
        """Keywords of `open_table` for data with the features of the model."""
        if not self.is_new_source or self.model is None:
            return {}
        return {"like": self.model.features, "extend_categories": True}

    def kept_binning(self, features: tuple[Feature, ...]) -> Binning | None:
        """Return the model's split points if new trees use them, else None."""
        return Binning(features, self.model.edges) if self.keeps_bins and self.model is not None else None

    @property
    def n_before(self) -> int:
        """Number of iterations in the first scores."""
        return 0 if self.model is None else self.model.n_iterations

    @property
    def n_of_other_rows(self) -> int:
        """Number of iterations that were grown from other rows than those of the fit, by the records of the model."""
        if self.is_new_source or self.model is None:
            return self.n_earlier
        first, sources = self.n_earlier, self.model.sources
        for source in sources[::-1]:
            if source.get("data_digest") != sources[-1].get("data_digest"):
                break
            first = min(first, source["first_iteration"] - 1)
        return first

    def parameters_of(self, iteration: int) -> Mapping[str, Any] | None:
        """Return the stored parameters of an iteration, counted from 1, of an earlier fit; None if it belongs to this fit."""
        if self.model is None or iteration > self.n_earlier:
            return None
        sources = (
            source for source in self.model.sources if source["first_iteration"] <= iteration <= source["last_iteration"]
        )
        parameters: Mapping[str, Any] = next(sources)["parameters"]
        return parameters

    def last_iteration(self, max_iter: int) -> int:
        """Return the number of the last iteration, without early stopping."""
        return max_iter + self.n_earlier if self.is_new_source else max_iter


def keywords_for(model: Ensemble, keywords: dict[str, Any], custom_loss: Loss | Sequence[Loss] | None = None) -> dict[str, Any]:
    """Return the keywords of a fit that continues a model: ``loss="auto"`` becomes the model's loss with its options, and
    `multi_strategy` is by default that of the model.

    custom_loss : the user's loss objects, if the model has a custom loss.
    """
    if model.width > 1:
        keywords = {"multi_strategy": "multi_output_tree"} | keywords
    if model.averages:
        keywords = {"boosting": FOREST} | keywords
    if keywords.get("loss", "auto") != "auto":
        return keywords
    of_model = keywords_of(from_dict(model.loss, custom_loss))
    return of_model | keywords | {"loss": of_model["loss"]}


def check_options(bins: Any, steps: Any) -> None:
    """Raise ParameterError for invalid values of `continue_bins` and `continue_steps`."""
    if bins not in ("new", "kept"):
        raise ParameterError(f"continue_bins={bins!r} must be 'new' or 'kept'")
    if steps not in ("damped", "full"):
        raise ParameterError(f"continue_steps={steps!r} must be 'damped' or 'full'")


def without_model(bins: Any = "new", steps: Any = "damped") -> WarmStart:
    """Return `COLD_START`; raise ParameterError if `continue_bins` or `continue_steps` is given, which need a model."""
    check_options(bins, steps)
    for name, value, default in (("continue_bins", bins, "new"), ("continue_steps", steps, "damped")):
        if value != default:
            raise ParameterError(f"{name}={value!r} needs start_from, the model to continue")
    return COLD_START


def checked_source_name(source_name: Any) -> str | None:
    """Return the user's name of the data; raise ParameterError unless it is text or None."""
    if source_name is not None and not isinstance(source_name, str):
        raise ParameterError(f"source_name={source_name!r} must be text")
    return source_name


#: The start from nothing.
COLD_START = WarmStart()


def row_matrices(table: Table, rows: np.ndarray | None) -> Iterator[np.ndarray]:
    """Yield all or some rows of a table (int64, ascending), chunk by chunk, as matrices for prediction (see `matrix_of`)."""
    start = 0
    for i, length in enumerate(table.lengths):
        positions = None
        if rows is not None:
            low, high = np.searchsorted(rows, (start, start + length))
            positions = rows[low:high] - start
        yield from chunk_matrices(table, i, positions)
        start += length


def chunk_matrices(table: Table, i: int, rows: np.ndarray | None) -> Iterator[np.ndarray]:
    """Yield the values of all or some rows (positions, int64, ascending) of a chunk, slice by slice."""
    for _, rows_of_chunk, chunk in table.slices(i, rows):
        yield from _matrices_of(chunk, rows_of_chunk)


def _matrices_of(chunk: Chunk, rows: np.ndarray | None) -> Iterator[np.ndarray]:
    """Yield all or some rows of a chunk as one matrix, or in blocks if columns are sparse."""
    if chunk.matrix is not None or not has_sparse(chunk.columns):
        yield matrix_of(chunk, slice(None) if rows is None else rows)
        return
    n = chunk.n_rows if rows is None else len(rows)
    block = max(tuning().dense_block_bytes // (8 * len(chunk.columns)), 1)
    for first in range(0, n, block):
        last = min(first + block, n)
        yield matrix_of(chunk, slice(first, last) if rows is None else rows[first:last])


def row_matrix(table: Table, rows: np.ndarray | None) -> np.ndarray:
    """Return all or some rows of a table (int64, ascending) as one matrix of float32 or float64."""
    blocks = list(row_matrices(table, rows))
    return plain(blocks[0] if len(blocks) == 1 else np.concatenate(blocks))


def first_scores(baseline: np.ndarray, offset_outputs: slice, offset: np.ndarray | None, n_rows: int) -> np.ndarray:
    """Return the raw scores of rows before any tree, float64[n_outputs, n_rows]; arguments as of `starting_scores`."""
    scores = np.repeat(baseline[:, None], n_rows, axis=1)
    if offset is not None:
        scores[offset_outputs] += offset
    return scores


def starting_scores(
    baseline: np.ndarray,
    offset_outputs: slice,
    warm_start: WarmStart,
    table: Table,
    rows: np.ndarray | None,
    n_threads: int,
    iterations: Range | None = None,
) -> np.ndarray:
    """Return the first raw scores of all or some rows of a table.

    Parameters
    ----------
    baseline : float64[n_outputs]
    offset_outputs : slice
        The outputs that offsets are added to.
    warm_start : WarmStart
        The trees of its model are added.
    table : Table
        Its offsets are added to the baseline.
    rows : int64[...], ascending, or None
        Positions in the table; None for all rows.
    n_threads : int
    iterations : (first, last), optional
        Range of the model's iterations to add; default: all.

    Returns
    -------
    float64[n_outputs, n]
    """
    offset = table.offset if table.offset is None or rows is None else table.offset[rows]
    scores = first_scores(baseline, offset_outputs, offset, table.n_rows if rows is None else len(rows))
    add_trees(scores, warm_start, table, rows, n_threads, iterations)
    return scores


def add_trees(
    scores: np.ndarray,
    warm_start: WarmStart,
    table: Table,
    rows: np.ndarray | None,
    n_threads: int,
    iterations: Range | None = None,
) -> None:
    """Add the trees of a model, or of a range of its iterations, to raw scores in place; shapes as in `starting_scores`."""
    first, last = iterations or (0, warm_start.n_before)
    if warm_start.model is None or first == last:
        return
    flat = FlatEnsemble(warm_start.model)
    start = 0
    for block in row_matrices(table, rows):
        add_block(scores[:, start : start + len(block)], flat, block, (first, last), n_threads)
        start += len(block)


def add_block(scores: np.ndarray, flat: FlatEnsemble, block: np.ndarray, iterations: Range, n_threads: int) -> None:
    """Add the trees of a range of iterations to the raw scores (float64[n_outputs, n]) of the rows of a matrix, in place.

    The trees of a forest are averaged: raw scores stay those without them.
    """
    if flat.averages:
        return
    scores_by_row = np.ascontiguousarray(scores.T)
    flat.add_to(scores_by_row, block, iterations, n_threads)
    scores[:] = scores_by_row.T


def check_continues(model: Ensemble, features: tuple[Feature, ...], target: Target) -> None:
    """Check that data have the features, classes and loss of the model that they continue.

    Raises
    ------
    DataError
        The message names the first feature or class that differs.
    """
    old, new = model.features, features
    if len(old) != len(new):
        raise DataError(f"the model to continue has {len(old)} features, the data have {len(new)}")
    for before, now in zip(old, new, strict=True):
        if before != now:
            difference = "other levels than" if before.name == now.name else f"the position of {before.name!r} in"
            raise DataError(f"the data do not continue the model: column {now.name!r} has {difference} the model")
    if model.classes != target.classes:
        raise DataError(f"the data do not continue the model: it knows the classes {model.classes}, they {target.classes}")
    check_loss(model, target.loss)


def check_loss(model: Ensemble, loss: BaseLoss) -> None:
    """Raise DataError if the loss is not the loss of the model that is continued."""
    if not loss.is_stored_as(model.loss):
        raise DataError(f"the model to continue was trained with {_shown_loss(model.loss)}, not {_shown_loss(loss.to_dict())}")


def _shown_loss(stored: dict[str, Any]) -> str:
    """Return name and options of a loss, given its record in a model."""
    if "losses" not in stored:
        hidden = {"name", *(name for known in BUILT_IN if known.name == stored["name"] for name in known.learned)}
        options = ", ".join(f"{name}={value!r}" for name, value in stored.items() if name not in hidden)
        return f"loss {stored['name']!r}" + (f" ({options})" if options else "")
    parts = stored["losses"]
    if len(stored.get("targets", parts)) == 1 and all(part["name"] == "quantile" for part in parts):
        return f"loss 'quantile' (quantile={[part['quantile'] for part in parts]})"
    return f"{' and '.join(dict.fromkeys(map(_shown_loss, parts)))} for {listed(stored['outputs'])}"
