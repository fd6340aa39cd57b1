"""Assemble an `Ensemble` from the trees of a fit, with a record of the data and parameters of each source."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dboost.model.ensemble import Ensemble
from dboost.session.warm_start import WarmStart

if TYPE_CHECKING:
    from dboost.training.loop import BoostingLoop

_NOT_METRICS = ("iteration", "seconds", "rows_kept", "bytes_read", "workers", "bite", "visit")


def assemble(
    empty: Ensemble,
    loop: BoostingLoop,
    n_rows: int,
    warm_start: WarmStart,
    notes: dict[str, Any] | None = None,
    *,
    whole: bool = False,
) -> Ensemble:
    """Return the ensemble with the trees grown so far.

    Parameters
    ----------
    empty : Ensemble
        The model without trees, sources and metrics.
    training : BoostingLoop
    n_rows : int
        Number of training rows.
    warm_start : WarmStart
        The model that the fit continues.
    notes : dict, optional
        Further entries of the source's record.
    whole : bool, default False
        Include the trees of an incomplete iteration and, with early stopping, those after the best iteration.
    """
    stopping, model = loop.early_stopping, warm_start.model
    before, k = warm_start.n_before, loop.loss.n_outputs
    best = None if stopping is None else max(stopping.best_iteration, warm_start.n_earlier)
    snapshots = loop.snapshots
    trees = () if model is None else model.trees
    if not whole:
        # The last iteration may have been interrupted: then it is not in the history.
        n_kept = loop.n_done if best is None else best
        snapshots, trees = snapshots[: max(n_kept - before, 0) * k], trees[: n_kept * k]
    trees += tuple(h.to_tree(loop.binning, loop.parameters, loop.loss) for h in snapshots)
    source = {
        "label": None,
        "rows": n_rows,
        "first_iteration": warm_start.n_earlier + 1,
        "last_iteration": len(trees) // k,
        "parameters": empty.parameters,
        "data_digest": _digest(empty, n_rows),
    } | (notes or {})
    history, n_earlier = loop.history, before
    if loop.parameters.arcbites is not None:  # all of this fit's, also if it resumes
        history, n_earlier = _of_model(history, loop.n_done if best is None else best), warm_start.n_earlier
    metrics = metrics_of(history)
    if model is None:
        return replace(empty, trees=trees, sources=(source,), metrics=metrics, best_iteration=best)
    sources = _with_source(model, source, warm_start)
    is_first = source["first_iteration"] == 1
    return replace(
        empty,
        trees=trees,
        parameters=empty.parameters if is_first else model.parameters,
        sources=sources,
        metrics=appended(model.metrics, n_earlier, metrics, len(history)),
        best_iteration=best,
    )


def _of_model(history: list[dict[str, Any]], last: int) -> list[dict[str, Any]]:
    """Return the last record of each iteration of the model; numbers of iterations that were cut back occur repeatedly."""
    latest = {record["iteration"]: record for record in history if record["iteration"] <= last}
    return [latest[iteration] for iteration in sorted(latest)]


def _with_source(model: Ensemble, source: dict[str, Any], warm_start: WarmStart) -> tuple[dict[str, Any], ...]:
    """Return the sources of a continued model; the last one is extended if data and parameters are unchanged."""
    if not model.sources or warm_start.is_new_source:
        return (*(one for one in model.sources if one["first_iteration"] <= warm_start.n_earlier), source)
    last = model.sources[-1]
    if warm_start.resumes or _without_length(last) == _without_length(source):
        source["first_iteration"] = last["first_iteration"]
        return (*model.sources[:-1], source)
    return (*model.sources, source)


def metrics_of(history: list[dict[str, Any]]) -> dict[str, tuple[float, ...]]:
    """Return the metrics of a history by name, one value per record."""
    names = [name for name in history[0] if name not in _NOT_METRICS and not name.startswith("seconds")] if history else []
    return {name: tuple(record[name] for record in history) for name in names}


def appended(
    old: dict[str, tuple[float, ...]], n_old: int, new: dict[str, tuple[float, ...]], n_new: int
) -> dict[str, tuple[float, ...]]:
    """Return metrics by iteration, NaN where a metric was not evaluated."""
    nan = float("nan")
    return {
        name: old.get(name, (nan,) * n_old)[:n_old] + new.get(name, (nan,) * n_new)
        for name in [*new, *(name for name in old if name not in new)]
    }


def _without_length(source: dict[str, Any]) -> dict[str, Any]:
    """Return a source's record without the entries that depend on the number of iterations."""
    parameters = {name: value for name, value in source["parameters"].items() if name != "max_iter"}
    kept = {name: value for name, value in source.items() if name != "summary" and not name.endswith("_iteration")}
    return kept | {"parameters": parameters}


def _digest(ensemble: Ensemble, n_rows: int) -> str:
    """Return the SHA-256 digest of the data's schema and size: names, kinds, categories, number of rows."""
    schema = [[f.name, None if f.categories is None else [repr(level) for level in f.categories]] for f in ensemble.features]
    return hashlib.sha256(json.dumps([schema, n_rows]).encode()).hexdigest()
