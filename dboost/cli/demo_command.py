"""``dboost demo``: train on real data that need no download, and compare the scores.

The data are scikit-learn's copy of the Wisconsin breast cancer study: 569 tumours with 30 measurements of cell nuclei each; the
target is whether a tumour is malignant. A third of the rows is held out. The scores there are compared with those of a constant
prediction (the class frequencies) and of scikit-learn's gradient boosting with the same settings. Rows, model, predictions and
a plot are written to a folder; the output ends with the commands that do the same with another file.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

import dboost
from dboost.errors import DBoostError
from dboost.inspection.plots import canvas

if TYPE_CHECKING:
    from dboost.booster import Booster

TARGET = "diagnosis"
POSITIVE = "malignant"


def run(arguments: argparse.Namespace) -> None:
    folder = Path(arguments.output)
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(markup=False, emoji=False)  # the name of the folder is printed verbatim
    train, test = rows()
    train.to_parquet(folder / "train.parquet", index=False)
    test.to_parquet(folder / "test.parquet", index=False)
    console.print(f"Real rows: {len(train)} tumours to learn from, {len(test)} held out, {train.shape[1] - 1} features.")
    booster = dboost.fit(train, TARGET, eval_set=test, progress=True)
    booster.save(str(folder / "model.json"))
    probability = booster.predict_proba(test)[POSITIVE].to_numpy()
    predictions = pd.DataFrame({TARGET: test[TARGET], "prediction": booster.predict(test), "probability": probability})
    predictions.to_parquet(folder / "predictions.parquet", index=False)
    console.print(_scores(train, test, probability))
    drawn = _plot(booster, test[TARGET], folder / "demo.png")
    _print_commands(console, folder, drawn)


def rows() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return training and held-out rows with equal class frequencies."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.model_selection import train_test_split

    study = load_breast_cancer(as_frame=True)
    table = study.data.assign(**{TARGET: np.array(study.target_names)[study.target]})
    train, test = train_test_split(table, test_size=1 / 3, stratify=table[TARGET], random_state=0)
    return train.reset_index(drop=True), test.reset_index(drop=True)


def _scores(train: pd.DataFrame, test: pd.DataFrame, probability: np.ndarray) -> Table:
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

    peer = HistGradientBoostingClassifier(l2_regularization=1.0, early_stopping=False)
    peer.fit(train.drop(columns=TARGET), train[TARGET] == POSITIVE)
    frequency = (train[TARGET] == POSITIVE).mean()
    predictions = {
        "the constant prediction": np.full(len(test), frequency),
        "scikit-learn, same settings": peer.predict_proba(test.drop(columns=TARGET))[:, 1],
        "dboost": probability,
    }
    truth = test[TARGET] == POSITIVE
    table = Table(title=f"On the {len(test)} held-out rows", title_justify="left", title_style="")
    table.add_column()
    for score in ("log loss", "AUC", "accuracy"):
        table.add_column(score, justify="right")
    for name, p in predictions.items():
        scores = log_loss(truth, p), roc_auc_score(truth, p), accuracy_score(truth, p > 0.5)
        table.add_row(name, *(f"{score:.3f}" for score in scores), style="bold" if name == "dboost" else "")
    return table


def _plot(booster: Booster, held_out: pd.Series, path: Path) -> bool:
    """Plot the loss and the importance of features; return False if matplotlib is not installed."""
    try:
        style = canvas.style()
    except DBoostError:
        return False
    frequency = (held_out == POSITIVE).mean()
    constant = -(frequency * np.log(frequency) + (1 - frequency) * np.log(1 - frequency))
    with style, canvas.detached():
        left, right = canvas.new_axes(1, 2, width=10.0, height=4.2)[0]
        left.axhline(constant, color=canvas.GREY, linewidth=1, label="constant prediction")
        booster.plot_history(ax=left).set_ylim(0, constant * 1.12)
        booster.plot_importance(max_features=10, ax=right)
        left.figure.savefig(path)
    return True


def _print_commands(console: Console, folder: Path, drawn: bool) -> None:
    picture = f"{folder}/demo.png" if drawn else "no picture: pip install 'dboost[plots]'"
    dboost = _command()
    console.print(
        f"Written: {folder}/model.json, {folder}/predictions.parquet, {picture}\n\n"
        "The same from the command line:\n\n"
        f"  {dboost} train {folder}/train.parquet --target {TARGET} --eval {folder}/test.parquet "
        f"--output {folder}/model.json\n"
        f"  {dboost} inspect {folder}/model.json\n"
        f"  {dboost} predict {folder}/model.json {folder}/test.parquet --output {folder}/predictions.parquet --proba\n\n"
        "And with a file of yours:\n\n"
        f"  {dboost} train YOURS.parquet --target COLUMN --output model.json\n",
        soft_wrap=True,
        highlight=False,
    )


def _command() -> str:
    """The name of the command in the shell, or its path if the environment is not activated."""
    script = Path(sys.executable).with_name("dboost")
    if shutil.which("dboost") == str(script):
        return "dboost"
    if not script.exists():
        return f"{sys.executable} -m dboost"
    return str(script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script)
