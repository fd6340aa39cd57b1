"""scikit-learn's own tests of HistGradientBoosting pass with dboost's estimators.

The tests are those of the installed scikit-learn; `tests.helpers.scikit_learn_swap` replaces the classes that they import.
Tests that make no estimator (they call scikit-learn's private classes) do not count. `NOT_APPLICABLE` lists the tests that
contradict a documented property of dboost, each with the reason; at least 98 % of the others must pass.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SUITE = "sklearn.ensemble._hist_gradient_boosting.tests"
FILES = ("test_gradient_boosting", "test_warm_start", "test_monotonic_constraints")
ROOT = Path(__file__).parents[2]

_INFINITE = "infinite values of features are an error in training: they usually stand for a division by zero"
_CARDINALITY = "a categorical feature may have 65,535 categories, whatever max_bins: there is no limit to raise an error for"
_TEXT = "the numbers are a column of text in the frame of this test, and dboost takes columns of text as categories"
_HELD_OUT = (
    "dboost holds out the rows with the smallest hashes, not those of train_test_split, so that partitions do not matter"
)
_PRIVATE_LOSS = "the loss is an instance of a private class of scikit-learn; dboost takes subclasses of dboost.losses.Loss"
_PRIVATE_CALLS = "counts the calls of private functions during a fit; dboost scores without predicting all rows again"
_DROPPED = (
    "dboost removes the trees after the best iteration, so a second fit grows these again and stops at the same iteration"
)

#: Tests that do not apply to dboost, as "file::name" or "file::name[parameters]", and why.
NOT_APPLICABLE = {
    "test_gradient_boosting::test_small_trainset": "calls the private method that samples rows for a scorer",
    "test_gradient_boosting::test_infinite_values": _INFINITE,
    "test_gradient_boosting::test_infinite_values_missing_values": _INFINITE,
    "test_gradient_boosting::test_early_stopping_with_sample_weights": _PRIVATE_CALLS,
    "test_gradient_boosting::test_raw_predict_is_called_with_custom_scorer": _PRIVATE_CALLS,
    "test_gradient_boosting::test_single_node_trees[HistGradientBoostingClassifier]": "a target of one class is an error",
    "test_gradient_boosting::test_custom_loss": _PRIVATE_LOSS,
    "test_gradient_boosting::test_categorical_bad_encoding_errors": _CARDINALITY,
    "test_gradient_boosting::test_X_val_in_fit": _HELD_OUT,
    "test_gradient_boosting::test_dataframe_categorical_results_same_as_ndarray": _TEXT,
    "test_gradient_boosting::test_dataframe_categorical_errors": _CARDINALITY,
    "test_warm_start::test_warm_start_early_stopping": _DROPPED,
}


def reason(name: str) -> str | None:
    return NOT_APPLICABLE.get(name) or NOT_APPLICABLE.get(name.partition("[")[0])


def run(folder: Path) -> dict[str, tuple[str, int, str]]:
    """Return outcome, number of estimators made and message of each test."""
    outcomes = folder / "outcomes.json"
    plugin = ["-p", "tests.helpers.scikit_learn_swap", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist"]
    files = [f"{SUITE}.{name}" for name in FILES]
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, f"--rootdir={folder}", *plugin, "--pyargs", *files]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"SWAP_OUTCOMES": str(outcomes), "PYTHONPATH": path}
    environment.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert outcomes.exists(), done.stdout + done.stderr
    return {name: tuple(found) for name, found in json.loads(outcomes.read_text()).items()}


@pytest.mark.long
@pytest.mark.slow
def test_histgradientboosting_tests_pass_with_the_import_swapped(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    pytest.importorskip(SUITE, reason="this scikit-learn was installed without its tests")
    outcomes = run(tmp_path)
    applicable = {name: found for name, found in outcomes.items() if found[1] > 0 and reason(name) is None}
    failed = {name: message for name, (outcome, _, message) in applicable.items() if outcome == "failed"}
    passed = [name for name, (outcome, *_) in applicable.items() if outcome == "passed"]
    figures = f"{len(passed)} of {len(passed) + len(failed)} tests pass, {len(outcomes) - len(applicable)} do not apply"
    record_property("histgradientboosting", figures)
    print(figures, *(f"{name}: {message}" for name, message in failed.items()), sep="\n")
    assert len(passed) > 140, figures
    assert len(passed) >= 0.98 * (len(passed) + len(failed)), failed
    assert [name for name, found in outcomes.items() if reason(name) and found[0] == "passed"] == [], "these do apply"
    # The plugin counts only tests that make an estimator, and reports one that fails.
    made = {name.partition("::")[2]: (outcome, n > 0) for name, (outcome, n, _) in outcomes.items()}
    assert made["test_X_val_raises_missing_y_val"] == ("passed", True)
    assert made["test_small_trainset"] == ("failed", True)
    assert made["test_sum_hessians_are_sample_weight[HalfSquaredError]"] == ("passed", False)
