"""The prediction kernels compute the predictions of the trees, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dboost.data.columns.binning import round_down
from dboost.data.kinds.predictor import FeatureBlocks
from dboost.kernels.predict import (
    QuickScorerForest,
    TraversalForest,
    predict_quickscorer,
    predict_rows,
    predict_traversal,
    scratch_for,
)
from dboost.model.ensemble import (
    Ensemble,
    FlatEnsemble,
    _Forest,
    _PageConditions,
    _paged,
    _walked,
    lay_out_forest,
    traversal_forest,
)
from dboost.schema import Feature
from tests.helpers.forests import random_ensemble, random_rows, random_tree
from tests.helpers.naive import trees as naive
from tests.helpers.tune import Tune

PRECISIONS = [np.float32, np.float64]

ensembles = st.builds(
    random_ensemble,
    seed=st.integers(0, 2**32),
    n_iterations=st.integers(0, 4),
    n_leaves=st.sampled_from([1, 2, 5, 31, 32, 33, 64, 65, 100]),
    n_outputs=st.sampled_from([1, 3]),
    with_categories=st.booleans(),
    lean=st.sampled_from([0.0, 0.5, 1.0]),
    is_wide=st.booleans(),
)


def ask_both(ensemble: Ensemble, rows: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return scores and leaves by either kernel, and the scores by the one for single rows."""
    answers = {}
    forest = _Forest(ensemble.trees, ensemble.features)
    pages = _paged(forest, _PageConditions(forest), rows.dtype)
    for laid, kernel in ((pages, predict_quickscorer), (_walked(forest, rows.dtype), predict_traversal)):
        scores = np.tile(ensemble.baseline, (len(rows), 1))
        leaves = np.full((len(rows), len(ensemble.trees)), -1, np.int32)
        room = scratch_for(laid.columns, laid.n_levels, rows.dtype)
        kernel(laid, rows, (0, len(rows)), (0, len(ensemble.trees)), scores, leaves, room)
        answers[kernel.__name__] = scores, leaves
    scores = np.tile(ensemble.baseline, (len(rows), 1))
    laid = traversal_forest(ensemble.trees, ensemble.features)
    predict_rows(laid, rows.astype(np.float64), (0, len(ensemble.trees)), scores)
    answers["predict_rows"] = scores, leaves
    return answers


@given(ensembles, st.integers(0, 130), st.sampled_from(PRECISIONS), st.integers(0, 2**32))
def test_both_kernels_agree_with_the_naive_twin(ensemble: Ensemble, n_rows: int, precision: type, seed: int) -> None:
    rows = random_rows(seed, ensemble, n_rows, precision)
    expected = np.array(naive.raw_scores(ensemble, rows.tolist())).reshape(n_rows, ensemble.n_outputs)
    expected_leaves = [[naive.leaf_number(tree, row) for tree in ensemble.trees] for row in rows.tolist()]
    for scores, leaves in ask_both(ensemble, rows).values():
        assert scores.tobytes() == expected.tobytes()
        assert leaves.tolist() == expected_leaves


@pytest.mark.parametrize("lean", [0.0, 0.5, 1.0])
def test_large_trees(lean: float) -> None:
    ensemble = random_ensemble(3, n_iterations=2, n_leaves=700, lean=lean)
    rows = random_rows(4, ensemble, 100)
    expected = np.array(naive.raw_scores(ensemble, rows.tolist()))
    for scores, _ in ask_both(ensemble, rows).values():
        assert scores.tobytes() == expected.tobytes()


@given(st.floats(width=32), st.floats(allow_nan=False))
@example(np.inf, 1e300)
@example(-np.inf, -1e300)
@example(-np.inf, -np.inf)
@example(0.0, -1e-320)
@example(-0.0, -0.0)
def test_rounding_down_keeps_the_test(x: float, threshold: float) -> None:
    rounded = round_down(np.array([threshold]), np.dtype(np.float32))
    assert rounded.dtype == np.float32
    assert bool(np.float32(x) <= rounded[0]) == (x <= threshold)


@given(st.integers(0, 2**32), st.integers(0, 2**32))
def test_single_precision_reaches_the_leaves_of_double(seed: int, rows_seed: int) -> None:
    ensemble = random_ensemble(seed, n_leaves=20)
    rows = random_rows(rows_seed, ensemble, 70, np.float32)
    flat = FlatEnsemble(ensemble)
    assert np.array_equal(flat.leaves(rows), flat.leaves(rows.astype(np.float64)))
    assert flat.raw_scores(rows).tobytes() == flat.raw_scores(rows.astype(np.float64)).tobytes()


@pytest.mark.parametrize("n_rows", [0, 1, 63, 64, 65, 1000])
def test_neither_threads_nor_neighbours_change_a_bit(n_rows: int, tune: Tune) -> None:
    tune(row_trees_per_thread=10)
    ensemble = random_ensemble(1, n_iterations=10, n_leaves=31, n_outputs=2)
    rows = random_rows(2, ensemble, n_rows)
    flat = FlatEnsemble(ensemble)
    scores, leaves = flat.raw_scores(rows, n_threads=1), flat.leaves(rows, n_threads=1)
    assert scores.shape == (n_rows, 2) and leaves.shape == (n_rows, 20) and leaves.dtype == np.int32
    for n_threads in (2, 3, None):
        assert flat.raw_scores(rows, n_threads=n_threads).tobytes() == scores.tobytes()
        assert np.array_equal(flat.leaves(rows, n_threads=n_threads), leaves)
    for row in range(0, n_rows, 97):
        assert np.array_equal(flat.raw_scores(rows[row : row + 1]), scores[row : row + 1])


def test_iterations_one_at_a_time() -> None:
    ensemble = random_ensemble(5, n_iterations=4, n_outputs=3)
    rows = random_rows(6, ensemble, 80)
    flat = FlatEnsemble(ensemble)
    numbers = tuple(Feature(feature.name) for feature in ensemble.features)
    stages = list(flat.staged_raw_scores(FeatureBlocks(rows, numbers, named=False)))
    assert len(stages) == 4
    for n, stage in enumerate(stages, start=1):
        assert stage.tobytes() == np.array(naive.raw_scores(ensemble, rows.tolist(), n)).tobytes()
        assert stage.tobytes() == flat.raw_scores(rows, (0, n)).tobytes()
    assert np.array_equal(flat.leaves(rows, (1, 3)), flat.leaves(rows)[:, 3:9])
    resumed = flat.raw_scores(rows, (0, 1))
    flat.add_to(resumed, rows, (1, 4))
    assert resumed.tobytes() == stages[-1].tobytes()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_any_layout_in_memory(precision: type) -> None:
    ensemble = random_ensemble(7, n_leaves=31)
    rows = random_rows(8, ensemble, 200, precision)
    flat = FlatEnsemble(ensemble)
    expected = flat.raw_scores(rows)
    apart = np.zeros((400, 7), precision)
    apart[::2, 1:6] = rows
    for same in (np.asfortranarray(rows), apart[::2, 1:6], rows[::-1][::-1]):
        assert np.array_equal(flat.raw_scores(same), expected)
    assert np.array_equal(flat.raw_scores(apart[::2, 1:6][:0]), expected[:0])
    with pytest.raises(ValueError, match="5 columns"):
        flat.raw_scores(rows[:, :4])


def test_integers_and_halves() -> None:
    ensemble = random_ensemble(9, n_leaves=31, with_categories=False)
    rows = np.random.default_rng(0).integers(-5, 5, (50, 5))
    flat = FlatEnsemble(ensemble)
    expected = flat.raw_scores(rows.astype(np.float64))
    assert np.array_equal(flat.raw_scores(rows), expected)
    assert np.array_equal(flat.raw_scores(rows.astype(np.float16)), expected)


def test_the_cheaper_layout_is_taken(tune: Tune) -> None:
    def kind(ensemble: Ensemble) -> type:
        return type(lay_out_forest(ensemble.trees, ensemble.features, np.dtype(np.float64)))

    small = random_ensemble(1, n_leaves=31)
    assert any(feature.is_categorical for feature in small.features)
    assert kind(small) is QuickScorerForest
    assert kind(random_ensemble(1, n_leaves=3000)) is TraversalForest
    assert kind(random_ensemble(1, n_leaves=300, lean=1.0)) is QuickScorerForest
    tune(mask_leaves=299)
    assert kind(random_ensemble(1, n_leaves=300, lean=1.0)) is TraversalForest
    tune(mask_words=10)
    assert kind(small) is TraversalForest
    assert kind(random_ensemble(1, n_leaves=31, with_categories=False)) is QuickScorerForest


def test_more_features_than_sixteen_bits_hold() -> None:
    features = tuple(Feature(f"f{j}") for j in range(70_000))
    rng = np.random.default_rng(0)
    trees = tuple(random_tree(rng, features, n_leaves) for n_leaves in (31, 31))
    ensemble = Ensemble(features, False, {"name": "squared_error"}, None, None, np.zeros(1), trees)
    assert max(tree.feature.max() for tree in trees) > 65_535
    rows = np.random.default_rng(1).normal(size=(20, 70_000)).astype(np.float32)
    expected = np.array(naive.raw_scores(ensemble, rows))
    for scores, _ in ask_both(ensemble, rows).values():
        assert scores.tobytes() == expected.tobytes()


def test_thousands_of_levels() -> None:
    features = (Feature("town", tuple(f"town {i}" for i in range(65_535))),)
    rng = np.random.default_rng(0)
    trees = (random_tree(rng, features, 8), random_tree(rng, features, 8))
    ensemble = Ensemble(features, True, {"name": "squared_error"}, None, None, np.zeros(1), trees)
    codes = np.concatenate([[0, 31, 32, 65_534, np.nan], rng.integers(65_535, size=200)])[:, np.newaxis]
    expected = np.array(naive.raw_scores(ensemble, codes.tolist()))
    for precision in PRECISIONS:
        for scores, _ in ask_both(ensemble, codes.astype(precision)).values():
            assert scores.tobytes() == expected.tobytes()


@pytest.mark.parametrize("n_leaves", [5, 700])
def test_nothing_but_categories(n_leaves: int) -> None:
    rng = np.random.default_rng(n_leaves)
    features = tuple(Feature(f"c{j}", tuple(range(n))) for j, n in enumerate([2, 40, 1]))
    trees = tuple(random_tree(rng, features, n_leaves) for _ in range(3))
    ensemble = Ensemble(features, True, {"name": "squared_error"}, None, None, np.zeros(1), trees)
    rows = random_rows(1, ensemble, 100)
    rows[:10, 1] = [39, 40, 41, 1e9, -1, -np.inf, np.inf, 31, 32, 63]  # some are no codes: they count as missing
    known = np.where((rows >= 0) & (rows < [2, 40, 1]), rows, np.nan)
    expected = np.array(naive.raw_scores(ensemble, known.tolist()))
    for precision in PRECISIONS:
        for scores, _ in ask_both(ensemble, rows.astype(precision)).values():
            assert scores.tobytes() == expected.tobytes()


def test_no_trees_is_the_baseline() -> None:
    ensemble = random_ensemble(0, n_iterations=0, n_outputs=3)
    scores = FlatEnsemble(ensemble).raw_scores(np.zeros((4, 5)))
    assert np.array_equal(scores, np.tile(ensemble.baseline, (4, 1)))
