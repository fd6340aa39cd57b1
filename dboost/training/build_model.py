"""From the trees of a fit to an `Ensemble`, with the record of where they came from."""

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
    training: BoostingLoop,
    n_rows: int,
    warm_start: WarmStart,
    notes: dict[str, Any] | None = None,
    *,
    whole: bool = False,
) -> Ensemble:
    """The ensemble so far.

    Parameters
    ----------
    empty : Ensemble
        Everything but trees, sources and metrics.
    training : Training
    n_rows : int
        Rows trained on.
    warm_start : Origin
        Where the fit began.
    notes : dict, optional
        What else the source's record says.
    whole : bool
        Also the trees of an iteration that is still being judged and, with early stopping, of those after the best one.
    """
    stopping, model = training.early_stopping, warm_start.model
    before, k = warm_start.n_before, training.loss.n_outputs
    best = None if stopping is None else max(stopping.best_iteration, warm_start.n_earlier)
    snapshots = training.snapshots
    trees = () if model is None else model.trees
    if not whole:
        # The last iteration may have been interrupted: then it is not in the history.
        n_kept = training.n_done if best is None else best
        snapshots, trees = snapshots[: max(n_kept - before, 0) * k], trees[: n_kept * k]
    trees += tuple(h.to_tree(training.binning, training.parameters, training.loss) for h in snapshots)
    source = {
        "label": None,
        "rows": n_rows,
        "first_iteration": warm_start.n_earlier + 1,
        "last_iteration": len(trees) // k,
        "parameters": empty.parameters,
        "data_digest": _digest(empty, n_rows),
    } | (notes or {})
    history, n_earlier = training.history, before
    if training.parameters.arcbites is not None:  # all of this fit's, also if it resumes
        history, n_earlier = _of_model(history, training.n_done if best is None else best), warm_start.n_earlier
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
    """The records of the iterations that the model has. Where some were cut back, later ones bear their numbers again."""
    latest = {record["iteration"]: record for record in history if record["iteration"] <= last}
    return [latest[iteration] for iteration in sorted(latest)]


def _with_source(model: Ensemble, source: dict[str, Any], warm_start: WarmStart) -> tuple[dict[str, Any], ...]:
    """The sources of a model that was continued; the last one goes on if it is the same data and the same learning."""
    if not model.sources or warm_start.is_new_source:
        return (*(one for one in model.sources if one["first_iteration"] <= warm_start.n_earlier), source)
    last = model.sources[-1]
    if warm_start.resumes or _without_length(last) == _without_length(source):
        source["first_iteration"] = last["first_iteration"]
        return (*model.sources[:-1], source)
    return (*model.sources, source)


def metrics_of(history: list[dict[str, Any]]) -> dict[str, tuple[float, ...]]:
    """The metrics of a history's records, by name."""
    names = [name for name in history[0] if name not in _NOT_METRICS and not name.startswith("seconds")] if history else []
    return {name: tuple(record[name] for record in history) for name in names}


def appended(
    old: dict[str, tuple[float, ...]], n_old: int, new: dict[str, tuple[float, ...]], n_new: int
) -> dict[str, tuple[float, ...]]:
    """Metrics by iteration, NaN where one was not judged."""
    nan = float("nan")
    return {
        name: old.get(name, (nan,) * n_old)[:n_old] + new.get(name, (nan,) * n_new)
        for name in [*new, *(name for name in old if name not in new)]
    }


def _without_length(source: dict[str, Any]) -> dict[str, Any]:
    """A source's record without what depends on how many iterations there are."""
    parameters = {name: value for name, value in source["parameters"].items() if name != "max_iter"}
    kept = {name: value for name, value in source.items() if name != "summary" and not name.endswith("_iteration")}
    return kept | {"parameters": parameters}


def _digest(ensemble: Ensemble, n_rows: int) -> str:
    """Digest of the data's schema and counts: names, kinds, levels, rows."""
    schema = [[f.name, None if f.levels is None else [repr(level) for level in f.levels]] for f in ensemble.features]
    return hashlib.sha256(json.dumps([schema, n_rows]).encode()).hexdigest()
