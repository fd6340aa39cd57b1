"""From the trees of a fit to an `Ensemble`, with the record of where they came from."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

from dboost.model.ensemble import Ensemble
from dboost.training.trainer import Training

_NOT_METRICS = ("iteration", "seconds", "rows_kept", "bytes_read")


def assemble(empty: Ensemble, training: Training, n_rows: int, start_from: Ensemble | None, *, whole: bool = False) -> Ensemble:
    """The ensemble so far.

    Parameters
    ----------
    empty : Ensemble
        Everything but trees, sources and metrics.
    training : Training
    n_rows : int
        Rows trained on.
    start_from : Ensemble or None
        The model that this fit continues.
    whole : bool
        Also the trees of an iteration that is still being judged and, with early stopping, of those after the best one.
    """
    stopping, before = training.early_stopping, training.n_before
    best = None if stopping is None else max(stopping.best_iteration, before)
    harvest = training.harvest
    if not whole:
        # The last iteration may have been interrupted: then it is not in the history.
        harvest = harvest[: (len(training.history) if best is None else best - before) * training.loss.n_outputs]
    trees = tuple(h.to_tree(training.binning, training.parameters, training.loss) for h in harvest)
    source = {
        "label": None,
        "rows": n_rows,
        "first_iteration": before + 1,
        "last_iteration": before + len(trees) // training.loss.n_outputs,
        "parameters": empty.parameters,
        "data_digest": _digest(empty, n_rows),
    }
    metrics = _metrics(training.history)
    if start_from is None:
        return replace(empty, trees=trees, sources=(source,), metrics=metrics, best_iteration=best)
    last = start_from.sources[-1]
    goes_on = _without_length(last) == _without_length(source)
    if goes_on:
        source["first_iteration"] = last["first_iteration"]
    return replace(
        empty,
        trees=start_from.trees + trees,
        parameters=empty.parameters if goes_on and len(start_from.sources) == 1 else start_from.parameters,
        sources=(*start_from.sources[: len(start_from.sources) - goes_on], source),
        metrics=_append(start_from.metrics, before, metrics, len(training.history)),
        best_iteration=best,
    )


def _metrics(history: list[dict[str, Any]]) -> dict[str, tuple[float, ...]]:
    names = [name for name in history[0] if name not in _NOT_METRICS and not name.startswith("seconds")] if history else []
    return {name: tuple(record[name] for record in history) for name in names}


def _append(
    old: dict[str, tuple[float, ...]], n_old: int, new: dict[str, tuple[float, ...]], n_new: int
) -> dict[str, tuple[float, ...]]:
    """Metrics by iteration, NaN where one was not judged."""
    nan = float("nan")
    return {
        name: old.get(name, (nan,) * n_old)[:n_old] + new.get(name, (nan,) * n_new)
        for name in [*new, *(name for name in old if name not in new)]
    }


def _without_length(source: dict[str, Any]) -> dict[str, Any]:
    """A source's record without what says how many iterations there are."""
    parameters = {name: value for name, value in source["parameters"].items() if name != "max_iter"}
    kept = {name: value for name, value in source.items() if not name.endswith("_iteration")}
    return kept | {"parameters": parameters}


def _digest(ensemble: Ensemble, n_rows: int) -> str:
    """Digest of the data's schema and counts: names, kinds, levels, rows."""
    schema = [[f.name, None if f.levels is None else [repr(level) for level in f.levels]] for f in ensemble.features]
    return hashlib.sha256(json.dumps([schema, n_rows]).encode()).hexdigest()
