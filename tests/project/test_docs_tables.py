"""The tables of the documentation agree with the code: parameters and metrics, here and in other libraries, keys, messages."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import dboost
from dboost.metrics.metric import MetricReduction
from dboost.metrics.named import ALIASES as METRIC_ALIASES
from dboost.metrics.named import find_metrics
from dboost.model import model_file
from dboost.params import Parameters, loss_names
from dboost.params.peer_names import ALIASES, HINTS, PREDICTION_ALIASES, PREDICTION_HINTS, SHOWN_ALIASES

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide"
OF_ESTIMATORS = "Only of the estimators"


def tables(page: str, header: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the heading and the cells of every row of the tables of a page whose first column has this header."""
    heading, inside = "", False
    for line in (GUIDE / page).read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        cells = [cell.strip() for cell in line.split("|")[1:-1]] if line.startswith("|") else []
        if not cells:
            inside = False
        elif cells[0] == header:
            inside = True
        elif inside and not set(line) <= set("|-"):
            yield heading, cells


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    found = {name: one.default for name, one in inspect.signature(function).parameters.items() if one.kind != one.VAR_KEYWORD}
    return {name: None if default is inspect.Parameter.empty else default for name, default in found.items() if name != "self"}


def of_fit() -> dict[str, Any]:
    return defaults_of(dboost.fit)


def of_estimators() -> dict[str, Any]:
    return defaults_of(dboost.DBoostRegressor.__init__) | defaults_of(dboost.DBoostClassifier.__init__)


#: Heading and cells of each row, the first of which is the name.
PARAMETERS = [
    (heading, [re.findall(r"`(\w+)`", cells[0])[0], *cells[1:]])
    for heading, cells in tables("parameters.md", "parameter")
    if len(cells) == 4
]


def test_the_page_of_parameters_lists_every_parameter_once() -> None:
    other_names = set(SHOWN_ALIASES)
    listed = [cells[0] for heading, cells in PARAMETERS if heading != OF_ESTIMATORS]
    assert sorted(listed) == sorted(set(of_fit()) - other_names)
    own = [cells[0] for heading, cells in PARAMETERS if heading == OF_ESTIMATORS]
    assert set(of_estimators()) - other_names <= {*listed, *own}
    assert set(own) - {"early_stopping"} == set(of_estimators()) - set(of_fit()) - other_names


def test_the_built_page_of_parameters_has_defaults_and_meanings() -> None:
    sys.path.insert(0, str(ROOT / "docs" / "_ext"))
    try:
        import parameter_table
    finally:
        sys.path.pop(0)
    text = parameter_table.filled((GUIDE / "parameters.md").read_text(encoding="utf-8"))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    shown = {tuple(cells[:2]): cells[2] for cells in rows if len(cells) == 6 and cells[0].startswith(("`", "[`"))}
    assert len(shown) == len(PARAMETERS)
    assert all(len(meaning) > 10 for meaning in shown.values())
    assert shown["`max_leaf_nodes`", "`31`"] == "Largest number of leaves of a tree."
    assert {"`None`", '`"auto"`'} == {default for name, default in shown if name == "`early_stopping`"}


def test_the_page_of_parameters_lists_the_aliases() -> None:
    rows = {cells[0].strip("`"): cells[1:] for _, cells in tables("parameters.md", "parameter") if len(cells) == 3}
    listed = {alias: name for name, (aliases, _) in rows.items() for alias in re.findall(r"`(\w+)`", aliases)}
    assert listed == ALIASES


def names_on_pages() -> Iterator[tuple[str, str, str]]:
    """Yield every name of another library in the tables, the cell with ours, and the page."""
    for _, cells in PARAMETERS:
        for cell in cells[1:4]:
            yield from ((name, cells[0], "parameters") for name in re.findall(r"`(\w+)`", cell))
    for page in ("xgboost", "lightgbm", "catboost", "scikit_learn"):
        for _, cells in tables(f"../migration/{page}.md", page.replace("_", "-")):
            names = re.findall(r"`(?:predict\()?(\w+)", cells[0])
            yield from ((name, " ".join(cells[1:]), page) for name in names)


#: Names that are no keywords of a function that trains or predicts, or that are ours with another meaning.
NO_KEYWORDS = {"alpha", "EarlyStopping", "TrainingCheckPoint", "interval", "early_stopping", "log_evaluation", "min_delta"}
NO_KEYWORDS |= {
    "early_stopping_round",
    "early_stopping_min_delta",
    "booster_",
    "dtrain",
    "train_set",
    "X",
    "y",
    "X_val",
    "y_val",
    "refit",
}


def test_the_pages_say_what_the_table_of_other_names_says() -> None:
    ours = {*of_fit(), *of_estimators()}
    checked = 0
    for name, cell, page in names_on_pages():
        if name in ours or name in NO_KEYWORDS:
            continue
        alias = ALIASES.get(name) or PREDICTION_ALIASES.get(name)
        assert alias is not None or name in {*HINTS, *PREDICTION_HINTS}, (page, name)
        if alias is not None:
            assert alias in cell, (page, name, alias, cell)
            checked += 1
    assert checked > 60


def leaves(nested: Any) -> Iterator[tuple[str, Any]]:
    for key, value in nested.items() if isinstance(nested, dict) else ():
        yield key, value
        yield from leaves(value)


def of_xgboost() -> dict[str, Any]:
    """Return what XGBoost calls its parameters, with the defaults that it reports."""
    xgboost = pytest.importorskip("xgboost")
    known: dict[str, Any] = dict.fromkeys(xgboost.XGBClassifier().get_params())
    callables = xgboost.DMatrix.__init__, xgboost.XGBClassifier.fit, xgboost.train
    for function in (*callables, xgboost.callback.TrainingCheckPoint.__init__, xgboost.callback.EarlyStopping.__init__):
        known |= defaults_of(function)
    known |= dict.fromkeys(["client", *dir(xgboost.callback)])
    y = np.linspace(1.0, 2.0, 20)
    for objective in (
        {"objective": "reg:quantileerror", "quantile_alpha": 0.5},
        {"objective": "reg:pseudohubererror"},
        {"objective": "reg:tweedie"},
        {},
    ):
        config = xgboost.train(objective, xgboost.DMatrix(y[:, None], y), 1).save_config()
        known |= dict(leaves(json.loads(config)))
    return known


def of_lightgbm() -> dict[str, Any]:
    lightgbm = pytest.importorskip("lightgbm")
    from lightgbm.basic import _ConfigAliases

    known: dict[str, Any] = {alias: None for aliases in _ConfigAliases._get_all_param_aliases().values() for alias in aliases}
    y = np.linspace(1.0, 2.0, 100)
    text = lightgbm.train({"verbose": -1}, lightgbm.Dataset(y[:, None], y), 1).model_to_string()
    known |= dict(re.findall(r"\[(\w+): ?(.*?)\]", text[text.index("\nparameters:") :]))
    for function in (lightgbm.train, lightgbm.Dataset.__init__, lightgbm.LGBMClassifier.fit):
        known |= defaults_of(function)
    known |= lightgbm.LGBMClassifier().get_params() | dict.fromkeys(["client", "refit", *dir(lightgbm)])
    return known | {"num_iterations": None, "verbosity": None}  # which were set above


def of_scikit_learn() -> dict[str, Any]:
    ensemble = importlib.import_module("sklearn.ensemble")
    known = ensemble.GradientBoostingRegressor().get_params() | ensemble.HistGradientBoostingRegressor().get_params()
    known |= ensemble.HistGradientBoostingClassifier().get_params()
    return known | defaults_of(ensemble.HistGradientBoostingClassifier.fit)


def number(text: Any) -> float | None:
    found = re.match(r"[-−]?\d[\d.]*(e-?\d+)?", str(text))
    return None if found is None or isinstance(text, bool) else float(found[0].replace("−", "-"))


@pytest.mark.parametrize(
    ("column", "peer"), [(1, of_xgboost), (2, of_lightgbm), (3, of_scikit_learn)], ids=["XGBoost", "LightGBM", "scikit-learn"]
)
def test_names_and_defaults_of_other_libraries_are_true(column: int, peer: Callable[[], dict[str, Any]]) -> None:
    known = peer()
    compared = 0
    for heading, cells in PARAMETERS:
        ours = (of_estimators() if heading == OF_ESTIMATORS else of_fit())[cells[0]]
        named = re.findall(r"`(\w+)`", cells[column])
        assert set(named) <= set(known), cells
        stated = re.search(r"\(([^)]*)\)", cells[column])
        expected = number(stated[1] if stated else ours)
        for name in named:
            default = number(known[name])
            if default is not None and expected is not None:
                assert default == pytest.approx(expected), (cells[0], name)
                compared += 1
    assert compared >= 9


def loss_named(name: str, n_classes: int = 2) -> dboost.losses.Loss:
    return dboost.losses.by_name(name, n_classes, quantile=0.3, expectile=0.3, huber_alpha=0.9, tweedie_power=1.4)


#: Metrics of the ranking of all rows, as messages and the page list them.
RANKING = {"ndcg", "map", "ndcg@k", "map@k"}


def metrics_of(loss: dboost.losses.Loss) -> dict[str, MetricReduction]:
    """Return the metrics that an error message lists for a loss."""
    with pytest.raises(dboost.ParameterError) as failed:
        find_metrics("no such metric", loss)
    names = str(failed.value).split("choose from ")[1].split(", or give")[0].split(", ")
    return {metric.name: metric for metric in find_metrics([name for name in names if name not in RANKING], loss)}


@pytest.mark.parametrize(
    ("heading", "loss"),
    [
        ("Regression", loss_named("squared_error")),
        ("Two classes", loss_named("log_loss")),
        ("More than two classes", loss_named("log_loss", 3)),
    ],
    ids=["regression", "two classes", "more classes"],
)
def test_the_page_of_metrics_lists_every_metric(heading: str, loss: dboost.losses.Loss) -> None:
    known = metrics_of(loss)
    rows = {cells[0].strip("`"): cells for of, cells in tables("metrics.md", "metric") if of == heading}
    assert set(rows) == set(known) - {"squared_error"}
    for name, cells in rows.items():
        assert cells[3] == ("greater" if known[name].greater_is_better else "smaller"), name
        assert [alias for alias, full in METRIC_ALIASES.items() if full == name] == re.findall(r"`(\w+)`", cells[1])


def test_the_page_of_metrics_lists_those_of_rankings() -> None:
    rows = [cells for of, cells in tables("metrics.md", "metric") if of == "Ranking of all rows"]
    assert {name for cells in rows for name in re.findall(r"`([^`]+)`", cells[0])} == RANKING
    names = [name.replace("@k", "@5") for name in RANKING]
    for loss in (loss_named("squared_error"), loss_named("log_loss")):
        assert all(metric.greater_is_better for metric in find_metrics(names, loss))
    assert {cells[3] for cells in rows} == {"greater"}


def test_the_page_of_metrics_lists_those_of_single_losses() -> None:
    stated: dict[str, set[str]] = {}
    for _, cells in tables("metrics.md", "loss"):
        for loss in re.findall(r"`(\w+)`", cells[0]):
            stated.setdefault(loss, set()).update(re.findall(r"`(\w+)`", cells[1]))
    for name in set(loss_names()) - {"auto"}:
        loss = loss_named(name)
        common = metrics_of(loss_named("log_loss" if loss.targets.are_classes else "squared_error"))
        own = set(metrics_of(loss)) - set(common) - {name}
        assert own == stated.get(name, set()) - set(common), name


def test_the_page_of_dasks_configuration_lists_every_key() -> None:
    keys = yaml.safe_load((ROOT / "dboost" / "dboost.yaml").read_text("utf-8"))["dboost"]
    rows = {cells[0].strip("`"): cells[1].strip("`") for _, cells in tables("dask_configuration.md", "key") if len(cells) == 4}
    assert {name: yaml.safe_load(default) for name, default in rows.items()} == {f"dboost.{key}": keys[key] for key in keys}


def messages() -> list[str]:
    """Return the texts in the package; "…" stands for values that are inserted."""
    found = []
    for file in (ROOT / "dboost").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node] if isinstance(node, ast.Constant) else []
            texts = [part.value if isinstance(part, ast.Constant) else "…" for part in parts]
            if texts and all(isinstance(text, str) for text in texts):
                found.append("".join(map(str, texts)))
    return [text for text in found if len(text) > 12]


def test_messages_on_the_page_of_troubleshooting_exist() -> None:
    known = messages()
    page = (GUIDE / "troubleshooting.md").read_text(encoding="utf-8")
    terms = re.findall(r"^(.*)\n: ", page, re.MULTILINE)
    shown = [re.findall(r"^`([^`]+)`", term) for term in terms]
    assert sum(map(len, shown)) > 30
    for (message,) in filter(None, shown):
        parts = [re.escape(part) for part in message.split("…")]
        assert any(len(part) > 12 for part in parts), message
        assert any(re.search(".*".join(parts), text) for text in known), message


@pytest.mark.parametrize(
    ("page", "column"), [("xgboost.md", 1), ("lightgbm.md", 2), ("scikit_learn.md", 3)], ids=lambda one: str(one)
)
def test_differing_defaults_are_in_the_first_lines_of_a_migration_page(page: str, column: int) -> None:
    first_lines = (ROOT / "docs" / "migration" / page).read_text(encoding="utf-8").split("```python")[0]
    of_learning = {field.name for field in fields(Parameters)} - {"random_state", "early_stopping_rounds", "huber_alpha"}
    differing = set()
    for heading, cells in PARAMETERS:
        name, stated = cells[0], re.search(r"\(([^)]*)\)", cells[column])
        if heading != OF_ESTIMATORS and name in of_learning and stated and stated[1] not in ("0: none", "−1: no limit"):
            differing.add(name)
    assert differing
    assert {name for name in differing if f"`{name}`" not in first_lines} == set()


def test_the_first_lines_for_scikit_learn_name_all_differing_defaults() -> None:
    first_lines = (ROOT / "docs" / "migration" / "scikit_learn.md").read_text(encoding="utf-8").split("```python")[0]
    ensemble = importlib.import_module("sklearn.ensemble")
    for ours, theirs in (
        (dboost.DBoostRegressor(), ensemble.HistGradientBoostingRegressor()),
        (dboost.DBoostClassifier(loss="log_loss"), ensemble.HistGradientBoostingClassifier()),
    ):
        known = ours.get_params()
        for name, default in theirs.get_params().items():
            same = known[name] == default or (name == "loss" and known[name] == "auto")
            assert same or f"`{name}`" in first_lines, name


def test_the_page_on_privacy_lists_every_entry_of_a_model_file() -> None:
    listed = {name for _, cells in tables("security_and_privacy.md", "entry") for name in re.findall(r"`(\w+)", cells[0])}
    rows = [[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0]
    booster = dboost.fit(*rows, max_iter=1, min_samples_leaf=1).calibrate(*rows, coverage=0.5)
    entries = set(json.loads(model_file.dumps(booster.ensemble))) - {"format", "version", "target", "sha256"}
    assert listed == entries


def test_parameters_without_a_counterpart_exist_elsewhere_only() -> None:
    text = (GUIDE / "limitations.md").read_text(encoding="utf-8").split("## Parameters of other libraries")[1]
    outside = re.sub(r"\([^()]*(?:\([^()]*\)[^()]*)*\)", "", text)
    names = set(re.findall(r"`(\w+)`", outside))
    assert len(names) > 15
    assert names <= set(of_xgboost()) | set(of_lightgbm())
    assert names & (set(of_fit()) | set(of_estimators())) == set()


@pytest.mark.fast_cells(1)
@pytest.mark.parametrize("heading", ["Regression", "Two classes", "More than two classes"])
def test_metrics_of_other_libraries_have_the_names_on_the_page(heading: str) -> None:
    xgboost, lightgbm = pytest.importorskip("xgboost"), pytest.importorskip("lightgbm")
    rows = [cells for of, cells in tables("metrics.md", "metric") if of == heading]
    of_xgb, of_lgb = ([name for cells in rows for name in re.findall(r"`(\w+)`", cells[column])] for column in (4, 5))
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 2)), np.arange(200) % 3
    theirs = {"Regression": ("reg:squarederror", "regression"), "Two classes": ("binary:logistic", "binary")}
    objectives = theirs.get(heading, ("multi:softprob", "multiclass"))
    y = y % 2 if heading == "Two classes" else y
    classes = {"num_class": 3} if heading == "More than two classes" else {}
    found: dict[str, Any] = {}
    rows_of_xgb = xgboost.DMatrix(X, y)
    settings = {"objective": objectives[0], "eval_metric": of_xgb} | classes
    xgboost.train(settings, rows_of_xgb, 1, evals=[(rows_of_xgb, "x")], evals_result=found, verbose_eval=False)
    assert set(found["x"]) == set(of_xgb)
    record: dict[str, Any] = {}
    rows_of_lgb = lightgbm.Dataset(X, y)
    settings = {"objective": objectives[1], "metric": of_lgb, "verbose": -1} | classes
    callbacks = [lightgbm.record_evaluation(record)]
    lightgbm.train(settings, rows_of_lgb, 1, valid_sets=[rows_of_lgb], callbacks=callbacks)
    assert set(record["training"]) == set(of_lgb)
