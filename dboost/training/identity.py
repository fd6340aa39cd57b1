"""What a fit is, for its checkpoint: what was asked for, and the data as learning sees them, under names that never change.

Messages call the entries by words (`CALLED`), which may change: they are in no file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from dboost.engine.contract import Engine
from dboost.errors import DBoostError
from dboost.shard.fingerprint import fingerprint

if TYPE_CHECKING:
    from dboost.training.trainer import Training

#: What messages call the entries of `State.identity` that are not keywords of the user's.
CALLED = {
    "start_from": "the model to start from",
    "eval_set": "the names of the evaluation sets",
    "early_stopping": "the rule of early stopping",
    "target": "the target",
    "sample_weight": "the weight",
    "n_bites": "the number of arcbites",
    "order": "the order of columns",
    "loss": "the loss",
}


def describe(training: Training) -> dict[str, Any]:
    """The data as learning sees them."""
    binning, loss = training.binning, training.loss
    sums = merged(training.engine, len(binning.features)) if training.code_sums is None else training.code_sums
    columns: dict[str, str] = {}
    for feature, edges, code_sum in zip(binning.features, binning.edges, sums[2:], strict=True):
        cut = [repr(level) for level in feature.levels or ()] if edges is None else [edge.hex() for edge in edges.tolist()]
        columns[feature.name] = hashlib.sha256(json.dumps([cut, code_sum]).encode()).hexdigest()
    # The weights first: what they change (split points, say) is not at fault.
    rows: dict[str, Any] = {"rows": training.engine.n_rows, "target": sums[0], "sample_weight": sums[1]}
    if training.parameters.arcbites is not None:
        rows["n_bites"] = training.parameters.arcbites.n_bites
    return rows | {"order": list(columns), "columns": columns, "loss": plain(loss.to_dict())}


def in_names(then: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """What the first version of the format noted of the data, as it is noted now.

    Columns were entries of their own, and the number of bites was noted only where the user had given it.
    """
    known = {name: then[called] for name, called in CALLED.items() if then.get(called) is not None}
    keys = {f"column {name!r}": name for name in now["columns"]}
    columns = {keys.get(key, key): value for key, value in then.items() if key.startswith("column ")}
    return {"rows": then["rows"], **known, "order": [keys.get(key, key) for key in known["order"]], "columns": columns}


def merged(engine: Engine, n_features: int) -> list[int]:
    """The sums of all rows: of target, weight, and the codes of each feature."""
    answers = engine.ask(fingerprint)
    total = reduce(np.add, answers, np.zeros(n_features + 2, np.uint64))
    return [int(number) for number in total]


def difference(then: dict[str, Any], now: dict[str, Any]) -> tuple[str, Any, Any] | None:
    """The first thing that differs between two records: its name, and both values."""
    for name in [*then, *(name for name in now if name not in then)]:
        if not same(then.get(name), now.get(name)):
            return name, then.get(name), now.get(name)
    return None


def same(one: Any, other: Any) -> bool:
    return one == other or (one != one and other != other)


def plain(value: Any) -> Any:
    """What comes back from JSON as it was."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise DBoostError(f"a checkpoint cannot note {value!r}")
