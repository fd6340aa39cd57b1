"""Fits: a `Spec` drawn from a seed, its tables as Parquet files, and the fit itself, on a cluster or in this process.

A fit in this process reads the same files as one table; every fit on the cluster must have its model, its history and its
sources, whatever happens there.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

#: Rows in files are stored in blocks of this many rows where everything is streamed.
BLOCK_ROWS = 4096
LOSSES: dict[str, Sequence[str]] = {
    "y": ("squared_error", "squared_error", "absolute_error", "quantile", "huber"),
    "count": ("poisson",),
    "z": ("log_loss",),
    "t": ("log_loss",),
}


@dataclass(frozen=True)
class Spec:
    """One fit.

    Attributes
    ----------
    rows, columns, partitions, seed
        Of the table, and as many rows by four of an evaluation set, in a third of the partitions.
    form : "from_map", "parquet", "path", "array", "persisted" or "memory"
    target : one of `LOSSES`
    options : keywords of `dboost.fit`
    weight, offset : whether there are any
    apart : whether target, weight and offset are given as arrays in the client's memory
    evaluation : "lazy", "path", "memory" or None
    validation_fraction : held out by an estimator; 0 for `dboost.fit`
    base : None, "continued" or "refitted", with a model of other rows
    checkpoint : whether it is written during the fit
    slow, held_slow : seconds that reading a partition takes, and one of the evaluation set
    """

    rows: int
    columns: int
    partitions: int
    seed: int
    form: str = "from_map"
    target: str = "y"
    options: dict[str, Any] = field(default_factory=dict)
    weight: bool = False
    offset: bool = False
    apart: bool = False
    evaluation: str | None = None
    validation_fraction: float = 0.0
    base: str | None = None
    checkpoint: bool = False
    slow: float = 0.0
    held_slow: float = 0.0

    @property
    def table(self) -> str:
        """Return the folder of its files."""
        return f"table-{self.rows}-{self.columns}-{self.partitions}-{self.seed}"

    @property
    def expects(self) -> str:
        """Return everything that its model depends on."""
        given = asdict(self)
        for name in ("slow", "held_slow", "checkpoint"):
            del given[name]
        return repr(sorted(given.items()))

    def __str__(self) -> str:
        plain = Spec(self.rows, self.columns, self.partitions, self.seed)
        parts = [f"{self.rows} rows × {self.columns} in {self.partitions} partitions (seed {self.seed})"]
        parts += [f"{name}={value!r}" for name, value in asdict(self).items() if value != getattr(plain, name)]
        return ", ".join(parts)


def draw(chance: random.Random) -> Spec:
    """Draw a fit of one to a few seconds."""
    form = chance.choice(["from_map"] * 4 + ["array"] * 3 + ["parquet", "path", "persisted", "memory"])
    target = chance.choice(["y", "y", "z", "t", "count"])
    loss = chance.choice(LOSSES[target])
    rows, columns = round(5000 * 12 ** chance.random()), chance.randint(5, 20)
    options: dict[str, Any] = {
        "loss": loss,
        "max_iter": chance.randint(10, 60 if target != "t" else 25),
        "max_leaf_nodes": chance.choice([4, 8, 15, 31]),
        "learning_rate": chance.choice([0.1, 0.3]),
        "random_state": chance.randint(0, 9),
        "n_threads": 2,
        "progress": False,
    }
    if loss == "quantile":
        options["quantile"] = chance.choice([0.2, 0.9])
    for name, value in (("subsample", 0.7), ("max_features", 0.5), ("growth", "depth_wise"), ("min_samples_leaf", 1)):
        if chance.random() < 0.2:
            options[name] = value
    kind = chance.choice(["plain"] * 3 + ["arcbites", "continued", "refitted", "estimator", "limit", "tree"])
    evaluation = chance.choice([None, "lazy", "lazy", "path", "memory"])
    fraction, base = 0.0, None
    if kind == "arcbites":
        one = {"n_bites": chance.choice([2, 3, 5]), "visits": 2}
        options["arcbites"] = one | (chance.choice([{"trees_per_visit": 3}, {"early_stopping_rounds": 3}, {"parts": 2}]))
    elif kind == "continued":
        base = kind
        options |= {"continue_bins": chance.choice(["new", "kept"]), "source_name": "later"}
    elif kind == "refitted":
        base, evaluation = kind, None
        options = {"n_threads": 2, "source_name": "later"}
    elif kind == "estimator":
        fraction, evaluation = 0.2, None
        if form in ("path", "persisted", "parquet"):
            form = "from_map"
    elif kind == "limit":
        options["memory_limit"] = chance.choice(["48MiB", "64MiB"])
    elif kind == "tree":
        options["split_proposal"] = chance.choice(["tree", "node"])
    if evaluation is not None and chance.random() < 0.5:
        options["early_stopping_rounds"] = chance.choice([3, 8])
    offset = target != "t" and not fraction and chance.random() < 0.25
    if (form == "array" or offset) and evaluation == "path":
        evaluation = "lazy"
    return Spec(
        rows,
        columns,
        chance.randint(4, 16),
        chance.randint(0, 3),
        form,
        target,
        options,
        weight=chance.random() < 0.4,
        offset=offset,
        apart=(form in ("array", "from_map") and chance.random() < (0.7 if form == "array" else 0.2)) or bool(fraction),
        evaluation=evaluation,
        validation_fraction=fraction,
        base=base,
        checkpoint=base != "refitted" and not fraction and chance.random() < 0.25,
        slow=chance.choice([0.0, 0.02, 0.1, 0.3]),
        held_slow=chance.choice([0.0, 0.1, 0.5, 1.5]) if evaluation == "lazy" else 0.0,
    )


# Tables.


def write_table(spec: Spec, folder: Path) -> None:
    """Write the files of a spec's table where they are missing."""
    home = folder / spec.table
    if home.exists():
        return
    partial = folder / f"{spec.table}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    rng = np.random.default_rng([spec.seed, spec.rows, spec.columns])
    for name, n, parts in (
        ("train", spec.rows, spec.partitions),
        ("held", spec.rows // 4, max(spec.partitions // 3, 2)),
        ("base", 4000, 1),
    ):
        (partial / name).mkdir(parents=True)
        frame = _rows(rng, n, spec.columns)
        # Uneven ones, the last one short.
        borders = np.round(n * np.linspace(0, 1, parts + 1) ** 0.8).astype(int)
        for k in range(parts):
            frame.iloc[borders[k] : borders[k + 1]].to_parquet(partial / name / f"part-{k:03}.parquet", index=False)
    partial.rename(home)


def _rows(rng: np.random.Generator, n: int, n_columns: int) -> pd.DataFrame:
    values = rng.normal(size=(n, n_columns)).astype(np.float64)
    values[rng.random(values.shape) < 0.03] = np.nan
    first, second = np.nan_to_num(values[:, 0]), np.nan_to_num(values[:, 1])
    town = rng.integers(0, 9, n)
    score = 2 * first + np.sin(3 * second) + (town % 3) + rng.normal(size=n)
    frame = pd.DataFrame(values, columns=[f"c{k}" for k in range(n_columns)])
    frame["town"] = np.array(list("abcdefghi"), object)[town]
    frame["w"] = rng.integers(0, 4, n).astype(np.float64)
    frame["o"] = np.round(rng.normal(size=n), 2)
    frame["y"] = score
    frame["count"] = rng.poisson(np.exp(np.clip(score / 4, -2, 2))).astype(np.float64)
    frame["z"] = (score > 1).astype(np.int64)
    frame["t"] = np.digitize(score, [-0.5, 2.5]).astype(np.int64)
    return frame


def files_of(spec: Spec, folder: Path, name: str) -> list[str]:
    return [str(path) for path in sorted((folder / spec.table / name).glob("*.parquet"))]


def read_slowly(path: str, columns: list[str], seconds: float) -> pd.DataFrame:
    """Return a partition; called by the tasks of Dask's collections."""
    if seconds:
        time.sleep(seconds)
    return pd.read_parquet(path, columns=columns)


def read_matrix(path: str, columns: list[str], seconds: float) -> np.ndarray:
    return read_slowly(path, columns, seconds).to_numpy(np.float64)


# Fits.


@dataclass(frozen=True)
class Outcome:
    """The result of a fit: digests of its file and its history, and its sources."""

    file: str
    history: str
    sources: str


def fit(spec: Spec, folder: Path, client: Any = None, callback: Callable[[Any], Any] | None = None) -> Outcome:
    """Fit, on a client's cluster or in this process, and return the result.

    folder : where tables, models to start from and checkpoints are.
    """
    import dboost

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = dict(spec.options)
        if client is not None:
            options["client"] = client
        if callback is not None and spec.base != "refitted":
            options["callbacks"] = [callback]
        data, target, roles = _given(spec, folder, "train", client)
        if spec.base is not None:
            options["start_from"] = str(_base(spec, folder))
        if spec.base == "refitted":
            booster = dboost.load(options.pop("start_from")).refit_leaves(data, target, **roles, **options)
        elif spec.validation_fraction:
            booster = _by_estimator(spec, data, target, roles, options)
        else:
            if spec.evaluation is not None:
                options["eval_set"] = {"held": _evaluation(spec, folder, client)}
            if spec.checkpoint and client is not None:
                options |= {"checkpoint": str(checkpoint_of(spec, folder)), "checkpoint_every": 3}
            booster = dboost.fit(data, target, **roles, **options)
    return outcome_of(booster)


def outcome_of(booster: Any) -> Outcome:
    from dboost.model import model_file

    history = booster.history
    kept = [name for name in history if not name.startswith("seconds") and name not in ("bytes_read", "workers")]
    return Outcome(
        hashlib.sha256(model_file.dumps(booster.ensemble)).hexdigest()[:16],
        hashlib.sha256(history[kept].to_csv().encode()).hexdigest()[:16],
        repr(booster.sources),
    )


def checkpoint_of(spec: Spec, folder: Path) -> Path:
    digest = hashlib.sha256(spec.expects.encode()).hexdigest()[:12]
    return folder / f"checkpoint-{digest}"


def _base(spec: Spec, folder: Path) -> Path:
    """Return a model of other rows, to start from."""
    import dboost

    options = {name: spec.options[name] for name in ("loss", "quantile") if name in spec.options}
    of_target = {"y": "squared_error", "count": "poisson", "z": "log_loss", "t": "log_loss"}
    options = {"loss": of_target[spec.target]} | options
    as_array = spec.form == "array"
    digest = hashlib.sha256(repr((spec.table, spec.target, options, as_array, spec.apart)).encode()).hexdigest()[:12]
    path = folder / f"model-{digest}.dboost"
    if not path.exists():
        frame = pd.read_parquet(folder / spec.table / "base")
        data = frame[_features(spec)].to_numpy(np.float64) if as_array else frame[_features(spec)]
        booster = dboost.fit(data, frame[spec.target].to_numpy(), max_iter=12, max_leaf_nodes=8, progress=False, **options)
        booster.save(path)
    return path


def _features(spec: Spec) -> list[str]:
    names = [f"c{k}" for k in range(spec.columns)]
    return names if spec.form == "array" else [*names, "town"]


def _roles(spec: Spec) -> dict[str, str]:
    return ({"sample_weight": "w"} if spec.weight else {}) | ({"offset": "o"} if spec.offset else {})


def _given(spec: Spec, folder: Path, name: str, client: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Return data, target and other roles as arguments of `dboost.fit`: lazy for a client."""
    paths, features, roles = files_of(spec, folder, name), _features(spec), _roles(spec)
    columns = [*features, spec.target, *roles.values()]
    apart = spec.apart or spec.form == "array"
    seconds = spec.slow if name == "train" else spec.held_slow
    if client is None or (spec.form == "memory" and name == "train") or (spec.evaluation == "memory" and name == "held"):
        frame = pd.concat([pd.read_parquet(path, columns=columns) for path in paths], ignore_index=True)
        if not apart:
            return frame, spec.target, dict(roles)
        data = frame[features].to_numpy(np.float64) if spec.form == "array" else frame[features]
        return data, frame[spec.target].to_numpy(), {role: frame[column].to_numpy() for role, column in roles.items()}
    if spec.form == "array":
        return _arrays(spec, paths, features, roles, seconds)
    if name == "held":
        by = "path" if spec.evaluation == "path" else "from_map"
    else:
        by = spec.form
    if by == "path" and not apart:
        return str(folder / spec.table / name), spec.target, {**roles} if spec.base else {**roles, "features": features}
    lazy = _frame(paths, columns, seconds, by)
    if by == "persisted":
        lazy = client.persist(lazy)
    if not apart:
        return lazy, spec.target, dict(roles)
    frame = pd.concat([pd.read_parquet(path, columns=columns) for path in paths], ignore_index=True)
    return lazy[features], frame[spec.target].to_numpy(), {role: frame[column].to_numpy() for role, column in roles.items()}


def _frame(paths: list[str], columns: list[str], seconds: float, by: str) -> Any:
    import dask.dataframe as dd

    if by == "parquet":
        return dd.read_parquet(paths, columns=columns, split_row_groups=False)
    meta = pd.read_parquet(paths[0], columns=columns).iloc[:0]
    return dd.from_map(read_slowly, paths, columns=columns, seconds=seconds, meta=meta)


def _arrays(
    spec: Spec, paths: list[str], features: list[str], roles: dict[str, str], seconds: float
) -> tuple[Any, Any, dict[str, Any]]:
    import dask
    import dask.array as da
    import pyarrow.parquet as pq

    columns = [*features, spec.target, *roles.values()]
    lengths = [pq.ParquetFile(path).metadata.num_rows for path in paths]
    parts = [
        da.from_delayed(dask.delayed(read_matrix)(path, columns, seconds), (n, len(columns)), np.float64)
        for path, n in zip(paths, lengths, strict=True)
    ]
    rows = da.concatenate(parts)
    data = rows[:, : len(features)]
    if spec.apart:
        frame = pd.concat([pd.read_parquet(path, columns=columns) for path in paths], ignore_index=True)
        return data, frame[spec.target].to_numpy(), {role: frame[column].to_numpy() for role, column in roles.items()}
    target = rows[:, len(features)].astype(np.int64 if spec.target in ("z", "t") else np.float64)
    return data, target, {role: rows[:, len(features) + 1 + k] for k, role in enumerate(roles)}


def _evaluation(spec: Spec, folder: Path, client: Any) -> Any:
    data, target, roles = _given(spec, folder, "held", client)
    if isinstance(target, str):
        return data
    given = (data, target, roles.get("sample_weight"), roles.get("offset"))
    return given if spec.offset else given[:3] if spec.weight else given[:2]


def _by_estimator(spec: Spec, data: Any, target: Any, roles: dict[str, Any], options: dict[str, Any]) -> Any:
    """Fit an estimator, which chooses the rows to hold out."""
    import dboost

    given = {name: value for name, value in options.items() if name not in ("eval_set", "progress")}
    given |= {"early_stopping": True, "validation_fraction": spec.validation_fraction, "n_iter_no_change": 5}
    kind = dboost.DBoostRegressor if spec.target in ("y", "count") else dboost.DBoostClassifier
    known = kind().get_params()
    estimator = kind(**{name: value for name, value in given.items() if name in known})
    if isinstance(target, str):
        raise ValueError("estimators want X and y")
    estimator.fit(data, target, **roles)
    return estimator.booster_
