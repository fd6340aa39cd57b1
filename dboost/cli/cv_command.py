"""``dboost cv``: call `dboost.cv` with the keywords of the command line and print the scores of the held-out rows.

``--output`` has the scores of all iterations, ``--predictions`` the predictions of each row by the model that has not been
trained on it, in row order and in the columns of ``dboost predict``.
"""

from __future__ import annotations

import argparse
import io
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from rich.console import Console
from rich.table import Table

import dboost
from dboost.cli import arguments as settings
from dboost.cli import output_paths
from dboost.cli.data_arguments import FOLD_KEYWORDS, fold_keywords, rows_of, with_target
from dboost.cluster.client.client import cluster_at
from dboost.display import number, with_spread
from dboost.errors import ParameterError
from dboost.files.atomic_write import write_whole

#: Why keywords of `dboost.cv` cannot be set.
ELSEWHERE = {
    **{name: why for name, why in settings.ELSEWHERE.items() if name != "eval_set"},
    **FOLD_KEYWORDS,
}


def run(arguments: argparse.Namespace) -> None:
    check_output(arguments.output, "--output", (".csv", ".parquet", ".json"))
    check_output(arguments.predictions, "--predictions", (".csv", ".parquet"))
    output_paths.check_separate(
        {"--output": arguments.output, "--predictions": arguments.predictions}, {"DATA": arguments.data}
    )
    parameters = settings.keywords_in(arguments, dboost.cv, ELSEWHERE)
    data, target = rows_of(arguments)
    division = fold_keywords(arguments)
    with cluster_at(arguments.scheduler, arguments.workers) as client:
        parameters |= target | division | {"client": client, "progress": not arguments.quiet}
        result = dboost.cv(with_target(arguments, data, client), **parameters)
    if arguments.output:
        _write_scores(arguments.output, result)
    if arguments.predictions:
        _write(arguments.predictions, _predictions(result))
    console = Console(highlight=False, markup=False, emoji=False)
    if arguments.quiet:
        console.print(_line(result), soft_wrap=True)
    else:
        console.print(_table(result))


def check_output(path: str | None, option: str, endings: Sequence[str]) -> None:
    """Raise a ParameterError if a file cannot be written, or has another ending than these."""
    if path is None:
        return
    if not path.lower().endswith(tuple(endings)):
        raise ParameterError(f"{option} {path}: the name must end in {' or '.join(endings)}")
    output_paths.check(path, option)


def _line(result: dboost.CVResult) -> str:
    """Return the best score in one line."""
    name, values = result.best_scores()[result.metric]
    return f"{name} {with_spread(float(np.mean(values)), float(np.std(values)))} in iteration {result.best_iteration}"


def _table(result: dboost.CVResult) -> Table:
    """Return the scores in the best iteration: a row for each metric."""
    last = result.scores["iteration"].max()
    scores = result.best_scores()
    best = f"the best mean {scores[result.metric][0]} is in {result.best_iteration}"
    title = f"{len(result.boosters)} folds, {last} iterations; {best}"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("metric", overflow="fold")
    table.add_column("iteration", justify="right", no_wrap=True)
    table.add_column("mean ± std", justify="right", no_wrap=True)
    table.add_column("each fold", overflow="fold")
    for name, values in scores.values():
        each = [number(value, 5) for value in values]
        table.columns[-1].min_width = max(table.columns[-1].min_width or 0, *map(len, each))
        spread = with_spread(float(np.mean(values)), float(np.std(values)))
        table.add_row(name, str(result.best_iteration), spread, " ".join(each))
    return table


def _write_scores(path: str, result: dboost.CVResult) -> None:
    if path.lower().endswith(".json"):
        content = {
            "metric": result.metric,
            "best_iteration": result.best_iteration,
            "best_score": result.best_score,
            "summary": result.summary.to_dict("records"),
            "scores": result.scores.to_dict("records"),
        }
        write_whole(path, json.dumps(_without_nan(content), indent=1).encode())
    else:
        _write(path, pa.Table.from_pandas(result.scores, preserve_index=False))


def _without_nan(value: Any) -> Any:
    """Return values that JSON has: null in place of NaN and infinity."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _predictions(result: dboost.CVResult) -> pa.Table:
    predictions = result.predictions
    if predictions.ndim == 1:
        return pa.table({"prediction": predictions})
    booster = result.boosters[0]
    prefix = "" if booster.classes_ is None else "probability_"
    return pa.table({f"{prefix}{name}": predictions[:, i] for i, name in enumerate(booster.outputs.columns)})


def _write(path: str, table: pa.Table) -> None:
    buffer = io.BytesIO()
    (pa.parquet.write_table if path.lower().endswith(".parquet") else pa.csv.write_csv)(table, buffer)
    write_whole(path, buffer.getvalue())
