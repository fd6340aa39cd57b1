"""``dboost demo``: a first look, on real rows that need no download.

The table is scikit-learn's copy of the Wisconsin breast cancer study (569 tumours, 30 measurements of cell nuclei
each): is a tumour malignant? A third of the rows is held out. The score there stands beside that of a constant
prediction, which knows only how frequent the classes are, and of scikit-learn's boosting at the same settings. The
rows, the model, the predictions and a picture stay in a folder; at the end come the commands that do the same with a
file of one's own.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

import dboost

if TYPE_CHECKING:
    from dboost.booster import Booster

TARGET = "diagnosis"
POSITIVE = "malignant"
#: Blue and vermilion of the Okabe–Ito palette, which colour-blind people can tell apart.
BLUE, VERMILION, GREY = "#0072B2", "#D55E00", "#666666"


def run(arguments: argparse.Namespace) -> None:
    folder = Path(arguments.output)
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(markup=False, emoji=False)  # the folder may be called anything
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
    drawn = draw(booster, test[TARGET], folder / "demo.png")
    _farewell(console, folder, drawn)


def rows() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Training and held-out rows, with equal shares of the two classes."""
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
    contenders = {
        "the constant prediction": np.full(len(test), frequency),
        "scikit-learn, same settings": peer.predict_proba(test.drop(columns=TARGET))[:, 1],
        "dboost": probability,
    }
    truth = test[TARGET] == POSITIVE
    table = Table(title=f"On the {len(test)} held-out rows", title_justify="left", title_style="")
    table.add_column()
    for score in ("log loss", "AUC", "accuracy"):
        table.add_column(score, justify="right")
    for name, p in contenders.items():
        scores = log_loss(truth, p), roc_auc_score(truth, p), accuracy_score(truth, p > 0.5)
        table.add_row(name, *(f"{score:.3f}" for score in scores), style="bold" if name == "dboost" else "")
    return table


def draw(booster: Booster, held_out: pd.Series, path: Path) -> bool:
    """How the loss fell, and which features did it; False where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(10, 4.2), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.1))
    _draw_loss(left, booster.history, held_out)
    _draw_importance(right, booster.to_frame())
    figure.savefig(path)
    return True


def _draw_loss(axes: Any, history: pd.DataFrame, held_out: pd.Series) -> None:
    frequency = (held_out == POSITIVE).mean()
    constant = -(frequency * np.log(frequency) + (1 - frequency) * np.log(1 - frequency))
    axes.axhline(constant, color=GREY, linestyle=(0, (4, 3)), linewidth=1)
    axes.annotate("constant prediction", (1, constant), (-2, 4), color=GREY, ha="right", **_NEAR_THE_EDGE)
    for column, color, label in (("train_loss", BLUE, "training rows"), ("eval_log_loss", VERMILION, "held-out rows")):
        axes.plot(history["iteration"], history[column], color=color, linewidth=1.8)
        last = (1, history[column].iloc[-1])
        axes.annotate(label, last, (-2, 6), color=color, ha="right", va="bottom", **_NEAR_THE_EDGE)
    axes.set(title="The loss falls", xlabel="iteration", ylabel="log loss", ylim=(0, constant * 1.12))
    axes.set_xlim(0, history["iteration"].iloc[-1])
    _calm(axes)


#: Labels beside the end of a line: x in shares of the axis, y in units of the data.
_NEAR_THE_EDGE: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}


def _draw_importance(axes: Any, trees: pd.DataFrame, shown: int = 10) -> None:
    gain = trees.groupby("feature")["gain"].sum().sort_values()
    share = (100 * gain / gain.sum()).tail(shown)
    axes.barh(share.index, share, color=BLUE, height=0.65)
    axes.set(title=f"The {len(share)} features that did most of it", xlabel="share of the loss reduction, percent")
    axes.tick_params(axis="y", length=0)
    _calm(axes)


def _calm(axes: Any) -> None:
    axes.title.set(fontsize=11, ha="left", position=(0, 1))
    axes.spines[["top", "right"]].set_visible(False)


def _farewell(console: Console, folder: Path, drawn: bool) -> None:
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
    """How the shell finds the command: by its name, or by its path where the environment is not activated."""
    script = Path(sys.executable).with_name("dboost")
    if shutil.which("dboost") == str(script):
        return "dboost"
    if not script.exists():
        return f"{sys.executable} -m dboost"
    return str(script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script)
