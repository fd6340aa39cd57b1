"""Arcbites: boosting on one random subset of the rows after another."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dboost
from dboost import ArcBites, DBoostClassifier, DBoostRegressor, ParameterError
from dboost.data import ReadOptions, open_table
from dboost.kernels.rows import select_rows
from dboost.model.ensemble import Ensemble
from dboost.params import make_parameters, read_arcbites
from dboost.rows.row_sample import VISITS, derive_seed, hash_rows
from dboost.session.bites import part_sizes, parts_of
from dboost.session.local_backend import LocalBackend
from dboost.session.warm_start import WarmStart
from dboost.training.arcbites import order_of_visits
from dboost.training.fit import train
from dboost.training.request import FitRequest
from dboost.training.validation_rows import held_out_rows_of
from tests.helpers.fits import FEATURES, TARGETS, cut, mixed_frame, saved
from tests.helpers.tune import Tune

FRAME, HELD_OUT = mixed_frame(900), mixed_frame(300, seed=1)
SETTINGS: dict[str, Any] = {"max_iter": 12, "max_leaf_nodes": 6, "min_samples_leaf": 5, "progress": False}


@pytest.fixture(autouse=True)
def several_threads_for_small_tables(tune: Tune) -> None:
    tune(small_cells=0)


def fit(data: Any = FRAME, target: Any = "y", **changed: Any) -> dboost.Booster:
    named = {"features": FEATURES} if isinstance(target, str) and target in TARGETS else {}
    return dboost.fit(data, target, **(SETTINGS | named | changed))


# The assignment of rows to bites.


@given(seed=st.integers(0, 2**63), first=st.integers(0, 2**40), share=st.floats(0.0, 1.0, exclude_max=True))
def test_hashes_are_those_of_the_kernel(seed: int, first: int, share: float) -> None:
    numbers, chosen = np.arange(first, first + 300), np.empty(300, np.int64)
    threshold = np.uint64(int(share * 2.0**64))
    n = select_rows(np.uint64(seed), first, 300, threshold, chosen)
    assert numbers[hash_rows(seed, numbers) < threshold].tolist() == chosen[:n].tolist()


@given(seed=st.integers(0, 2**63 - 1), n_bites=st.integers(1, 50), n_rows=st.integers(1, 3000))
def test_every_row_is_in_one_bite_whoever_asks(seed: int, n_bites: int, n_rows: int) -> None:
    numbers = np.random.default_rng(seed).permutation(n_rows)
    bites = parts_of(seed, n_bites, numbers)
    assert ((bites >= 0) & (bites < n_bites)).all()
    assert bites.tolist() == [int(parts_of(seed, n_bites, numbers[i : i + 1])[0]) for i in range(n_rows)]
    # The naive counterpart: the upper half of the hash as a fraction.
    assert bites.tolist() == [int(h >> 32) * n_bites >> 32 for h in hash_rows(derive_seed(seed, 3), numbers).tolist()]
    assert part_sizes(seed, n_bites, n_rows).tolist() == np.bincount(bites, minlength=n_bites).tolist()


def test_the_order_of_visits() -> None:
    def order(n: int, losses: Callable[..., dict[int, float]] | None = None, **how: Any) -> list[int]:
        asked: Callable[..., dict[int, float]] = losses or pytest.fail
        visits: Iterator[int] = order_of_visits(ArcBites(**how), [0, 2, 3, 7], 5, asked)
        return [bite for _, bite in zip(range(n), visits, strict=False)]

    assert order(99, order="cyclic", visits=2) == [0, 2, 3, 7] * 2
    assert order(9, order="cyclic", visits=None) == [0, 2, 3, 7, 0, 2, 3, 7, 0]
    drawn = order(99, visits=30)
    cycles = [tuple(drawn[i : i + 4]) for i in range(0, 120, 4)]
    assert len(drawn) == 99
    assert all(sorted(cycle) == [0, 2, 3, 7] for cycle in cycles[:24])
    assert len(set(cycles[:24])) > 8, "another order in every cycle"
    loss = {0: 1.0, 2: 3.0, 3: 3.0, 7: 2.0}

    def losses(bites: list[int]) -> dict[int, float]:
        return {bite: loss[bite] for bite in bites}

    visited = []
    for bite in order_of_visits(ArcBites(order="adaptive", visits=1), [0, 2, 3, 7], 5, losses):
        visited.append(bite)
        loss[bite] -= 1.5
    assert visited == [2, 3, 7, 2], "of equals the first, and never the same twice"
    assert (
        list(order_of_visits(ArcBites(order="adaptive", visits=3), [4], 0, lambda bites: dict.fromkeys(bites, 0.0))) == [4] * 3
    )


# The naive counterpart of a fit.


def discrete(n: int, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Features of few values, all of which occur in every subset, so that the bins are the same for all subsets."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {"a": rng.integers(8, size=n), "b": rng.integers(5, size=n), "c": rng.integers(12, size=n)}, dtype=float
    )
    frame.loc[rng.random(n) < 0.1, "b"] = np.nan
    return frame, (frame["a"] * frame["b"].fillna(7) + np.sin(frame["c"]) + rng.normal(size=n)).to_numpy()


@pytest.mark.fast_cells(5)
@pytest.mark.parametrize(
    "loss", ["squared_error", "absolute_error", "huber", "log_loss", "exponential", "poisson", "log_loss of 3"]
)
@pytest.mark.parametrize("order", ["cyclic", "random"])
def test_naive_twin(loss: str, order: str) -> None:
    """Fit the rows of one bite after another; each fit starts from the model so far, whose scores are predicted."""
    frame, y = discrete(700)
    if loss == "poisson":
        y = np.abs(y)
    elif loss not in ("squared_error", "absolute_error", "huber"):
        y = np.digitize(y, np.quantile(y, [0.4, 0.7] if loss.endswith("3") else [0.4])).astype(float)
    options: dict[str, Any] = {"loss": loss.split()[0], "max_leaf_nodes": 6, "min_samples_leaf": 5, "subsample": 1.0}
    found = fit(frame, y, arcbites=ArcBites(3, 2, visits=2, order=order), **options)

    bites = parts_of(0, 3, np.arange(len(y)))
    assert found.history["visit"].tolist() == np.repeat(range(1, 7), 2).tolist()
    model: Ensemble = replace(found.ensemble, trees=(), sources=(), metrics={})
    for n, bite in enumerate(found.history["bite"][::2], 1):
        rows = bites == bite
        parameters = make_parameters(options | {"max_iter": 2 * n})
        request = FitRequest(parameters, 1, warm_start=WarmStart.same_data(model))
        opened = partial(open_table, frame[rows], y[rows], options=ReadOptions(n_threads=1))
        twin = train(request, LocalBackend(opened, 1))
        model = twin.ensemble
        k = model.n_outputs
        for a, b in zip(model.trees[-2 * k :], found.ensemble.trees[2 * k * (n - 1) : 2 * k * n], strict=True):
            assert a.feature.tolist() == b.feature.tolist()
            np.testing.assert_array_equal(a.threshold, b.threshold)
            np.testing.assert_allclose(a.value, b.value, rtol=1e-9, atol=1e-12)
            assert a.count.tolist() == b.count.tolist(), "grown from the rows of this bite and no others"
        if loss != "huber":  # whose δ is that of the bite
            last = found.history["train_loss"].iloc[2 * n - 1]
            assert last == pytest.approx(twin.history[-1]["train_loss"], rel=1e-9)


def test_a_single_bite_is_all_rows() -> None:
    for target in TARGETS:
        one = fit(target=target, arcbites=ArcBites(1, 12), subsample=0.7, sample_weight="w")
        plain = fit(target=target, subsample=0.7, sample_weight="w")
        assert [tree.value.tobytes() for tree in one.ensemble.trees] == [tree.value.tobytes() for tree in plain.ensemble.trees]
        assert one.history["train_loss"].tolist() == plain.history["train_loss"].tolist()


def test_parts_are_put_together_anew_in_every_cycle() -> None:
    X, y = FRAME[FEATURES], FRAME["y"].to_numpy()
    arcbites = ArcBites(3, 1, visits=4, parts=2)
    booster = fit(X, y, arcbites=arcbites)
    assert booster.ensemble.parameters["arcbites"]["parts"] == 2
    part = parts_of(0, 6, np.arange(len(y)))
    groups = []
    for n, prediction in enumerate(booster.staged_predict(X)):
        record, cycle = booster.history.iloc[n], n // 3
        order = sorted(range(6), key=lambda k, cycle=cycle: derive_seed(0, VISITS, cycle, 6 + k))  # type: ignore[misc]
        group = order[2 * int(record["bite"]) :][:2]
        rows = np.isin(part, group)
        groups.append(frozenset(group))
        assert record["rows_kept"] == rows.sum()
        assert record["train_loss"] == pytest.approx(((y - np.asarray(prediction))[rows] ** 2).mean() / 2, rel=1e-9)
    cycles = [groups[k : k + 3] for k in range(0, 12, 3)]
    assert all(frozenset().union(*cycle) == set(range(6)) for cycle in cycles), "every row once in a cycle"
    assert len({frozenset(cycle) for cycle in cycles}) > 1, "in other company"


# The model does not depend on the partitioning of the rows.


# Early stopping by the test set.


@pytest.mark.parametrize("target", TARGETS)
def test_the_model_is_cut_back_to_what_the_test_set_found_best(target: str) -> None:
    arcbites = ArcBites(4, early_stopping_rounds=4, visits=3)
    booster = fit(target=target, arcbites=arcbites, eval_set=HELD_OUT, max_iter=150, learning_rate=0.5)
    history, score = booster.history, f"eval_{booster.loss.name}"
    assert len(history) < 150
    assert booster.n_iter_ == booster.best_iteration < len(history)
    best, n = np.inf, 0
    for _, visit in history.groupby("visit"):
        assert visit["bite"].nunique() == 1
        assert visit["iteration"].tolist() == list(range(n + 1, n + 1 + len(visit))), "continues where the model was truncated"
        since = visit[score].expanding().min().clip(upper=best)
        improved = (visit[score] < since.shift(fill_value=best)).to_numpy()
        last = int(np.flatnonzero(improved).max(initial=-1))
        assert len(visit) - 1 - last == 4, "left after four iterations in vain"
        n, best = n + last + 1, min(best, visit[score].min())
    assert n == booster.n_iter_
    assert booster.ensemble.metrics[score][-1] == best
    assert len(booster.ensemble.metrics[score]) == n
    # The scores recorded for the rows of the test set equal the model's predictions.
    y = HELD_OUT[target].to_numpy() if target == "y" else np.searchsorted(booster.classes_, HELD_OUT[target]).astype(float)
    for raw, recorded in zip(booster.staged_predict(HELD_OUT, raw_score=True), booster.ensemble.metrics[score], strict=True):
        assert recorded == pytest.approx(booster.loss.value(y, np.atleast_2d(np.asarray(raw).T)).mean(), rel=1e-9)


def test_a_visit_that_helps_nothing_leaves_no_trace() -> None:
    """The last visits of a fit that ends after a whole cycle without improvement do not change the model."""
    common = {"eval_set": HELD_OUT, "max_iter": 400, "learning_rate": 0.5}
    arcbites = ArcBites(3, early_stopping_rounds=3, visits=None)
    booster = fit(arcbites=arcbites, **common)
    after = booster.history.groupby("visit")["iteration"].min()
    assert (after.iloc[-3:] == booster.n_iter_ + 1).all(), "three visits in a row began where the model ends"
    assert (after.iloc[-4:] != booster.n_iter_ + 1).any()
    fewer = len(booster.history[booster.history["visit"] <= len(after) - 3])
    shorter = fit(arcbites=arcbites, **(common | {"max_iter": fewer}))
    assert [tree.value.tobytes() for tree in shorter.ensemble.trees] == [
        tree.value.tobytes() for tree in booster.ensemble.trees
    ]


def test_trees_per_visit_alone_keep_everything() -> None:
    booster = fit(arcbites=ArcBites(3, 2), eval_set=HELD_OUT)
    assert booster.n_iter_ == len(booster.history) == 6, "three bites, one visit each"
    assert booster.best_iteration is None
    stopped = fit(
        arcbites=ArcBites(3, 2, visits=None), eval_set=HELD_OUT, early_stopping_rounds=3, learning_rate=1.0, max_iter=99
    )
    score = stopped.history["eval_squared_error"]
    assert stopped.n_iter_ == stopped.best_iteration == score.argmin() + 1 == len(score) - 3


def test_max_iter_is_the_total() -> None:
    assert fit(arcbites=ArcBites(5, 4, visits=None), max_iter=13).n_iter_ == 13
    booster = fit(arcbites=ArcBites(5), eval_set=HELD_OUT, max_iter=13)
    assert len(booster.history) == 13
    assert booster.history["bite"].nunique() == 1, "no early stopping in the first bite"


def test_rows_are_held_out_where_no_test_set_is_given() -> None:
    with pytest.warns(
        UserWarning, match=r"no eval_set was given that ends the visits of bites: \d+ of the 900 rows are held out"
    ):
        booster = fit(arcbites=ArcBites())
    rows = held_out_rows_of(900, 0).selects(np.arange(900))
    assert 60 < rows.sum() < 120
    given = fit(FRAME[~rows].reset_index(drop=True), arcbites=ArcBites(), eval_set={"validation": FRAME[rows]})
    assert [t.value.tobytes() for t in given.ensemble.trees] == [t.value.tobytes() for t in booster.ensemble.trees]
    assert given.ensemble.metrics == booster.ensemble.metrics
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(arcbites=ArcBites(4, 1))
        fit(arcbites=True)
    assert held_out_rows_of(10**7, 0).selects(np.arange(10**6)).mean() == pytest.approx(0.02, rel=0.05), "about 200,000 at most"


def test_rows_of_weight_zero_have_no_say() -> None:
    counted = FRAME[FRAME["w"] > 0].reset_index(drop=True)
    options = {"arcbites": ArcBites(4), "sample_weight": "w", "features": ["x", "age"], "max_iter": 30}
    with pytest.warns(UserWarning, match="held out"):
        assert saved(fit(FRAME, **options)) == saved(fit(counted, **options))


def test_an_offset_is_part_of_the_scores() -> None:
    frame = FRAME.assign(start=FRAME["y"] * 0.9, y=FRAME["y"])
    booster = fit(frame, offset="start", arcbites=ArcBites(3, 2), eval_set=frame)
    without = fit(frame, arcbites=ArcBites(3, 2), eval_set=frame)
    assert booster.history["eval_squared_error"].iloc[-1] < 0.1 * without.history["eval_squared_error"].iloc[-1]


# Bites in files.


def many_rows(n: int = 12_000) -> pd.DataFrame:
    """Numbers, a category with more than 255 levels, two weights; sorted, so that partitions differ."""
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(rng.normal(size=(n, 3)), columns=["a", "b", "c"])
    frame["level"] = pd.Categorical.from_codes(rng.integers(300, size=n), [f"l{i}" for i in range(300)])
    frame["w"] = rng.integers(0, 3, n).astype(float)
    frame["v"] = rng.random(n)
    frame["y"] = frame["a"] + np.sin(3 * frame["b"]) + rng.normal(size=n)
    frame["t"] = np.digitize(frame["y"], [-0.5, 1.0])
    return frame.sort_values("a", ignore_index=True)


ROWS = many_rows()
SMALL_LIMIT = "500KiB"
FEW_BINS: dict[str, Any] = {"features": ["a", "b", "c", "level"], "max_bins": 15, "max_leaf_nodes": 5, "max_iter": 12}


@pytest.mark.fast_cells(1)
@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("y", {"arcbites": ArcBites(8, 1, visits=2)}),
        ("y", {"arcbites": ArcBites(6, order="adaptive", early_stopping_rounds=1), "sample_weight": "w", "learning_rate": 1.0}),
        ("t", {"arcbites": ArcBites(8, 1, parts=3, visits=2), "sample_weight": "v", "loss": "log_loss"}),
    ],
)
def test_bites_in_files_give_the_same_model(target: str, options: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    options = FEW_BINS | options
    if ArcBites.is_watched.fget(options["arcbites"]):  # type: ignore[attr-defined]
        options["eval_set"] = ROWS[:500]
    expected = fit(ROWS, target, **options)
    with caplog.at_level("INFO", "dboost"):
        found = fit(cut(ROWS, range(1000, 12_000, 1000)), target, memory_limit=SMALL_LIMIT, **options)
    assert "are divided into bites in files" in caplog.text
    assert found.sha256 == expected.sha256
    read = found.history.groupby("visit")["bytes_read"].sum()
    assert (read > 12_000 // 9 * 30).all(), "every visit reads its bite"
    if options["arcbites"].order != "adaptive":
        assert (found.history["bytes_read"] > 0).tolist() == (~found.history["visit"].duplicated()).tolist()
    assert (expected.history["bytes_read"] == 0).all()


def test_prepared_data(tmp_path: Any) -> None:
    path = str(tmp_path / "rows.binned")
    dboost.prepare(ROWS, "y", path, features=FEW_BINS["features"], max_bins=15)
    options = FEW_BINS | {"arcbites": ArcBites(8, 1)}
    expected = fit(ROWS, "y", **options).sha256
    assert fit(path, "y", **options).sha256 == fit(path, "y", memory_limit=SMALL_LIMIT, **options).sha256 == expected
    held_out = options | {"arcbites": ArcBites(8)}  # a test set ends the visits; its rows have taken part in proposing the bins
    assert fit(path, "y", **held_out).sha256 == fit(path, "y", memory_limit=SMALL_LIMIT, **held_out).sha256


@pytest.mark.slow
def test_a_limit_says_how_many_bites(tmp_path: Any) -> None:
    """The limit determines the number of bites, whatever the number of threads; no file is left."""
    import dask

    options = FEW_BINS | {"arcbites": ArcBites(trees_per_visit=1)}
    with dask.config.set({"temporary-directory": str(tmp_path)}):
        few, more = (
            fit(cut(ROWS, range(500, 12_000, 500)), "y", memory_limit=limit, **options) for limit in ("500KiB", "350KiB")
        )
        n_few, n_more = (booster.ensemble.parameters["arcbites"]["n_bites"] for booster in (few, more))
        assert 1 < n_few < n_more < 100
        for n_threads in (1, 3):
            again = fit(ROWS, "y", arcbites=ArcBites(n_more, 1), n_threads=n_threads, **(FEW_BINS | {}))
            assert again.sha256 == more.sha256
        with pytest.raises(ParameterError, match=r"memory_limit of 100 KiB is too small for trees of 5 leaves"):
            fit(cut(ROWS, range(100, 12_000, 100)), "y", memory_limit="100KiB", **options)
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.slow
def test_a_checkpoint_knows_how_many_bites_a_limit_made(tmp_path: Any) -> None:
    """Another number of bites divides the rows differently: the existing trees would be added to rows of other bites."""
    options = FEW_BINS | {"arcbites": ArcBites(trees_per_visit=1, visits=None), "checkpoint": tmp_path, "checkpoint_every": 1}
    rows = cut(ROWS, range(500, 12_000, 500))
    first = fit(rows, "y", memory_limit="500KiB", **options | {"max_iter": 3})
    n_bites = first.ensemble.parameters["arcbites"]["n_bites"]
    for other in ("350KiB", None):
        with pytest.raises(
            ParameterError, match=rf"is of another fit .* there were {n_bites} arcbites, now there are [0-9]+ \("
        ):
            fit(rows, "y", memory_limit=other, **options)
    resumed = fit(rows, "y", memory_limit="500KiB", **options)
    whole = fit(rows, "y", memory_limit="500KiB", **options | {"checkpoint": None})
    assert resumed.sha256 == whole.sha256 and resumed.n_iter_ == 12


@pytest.mark.parametrize("steps", ["full", "damped"])
def test_the_warning_of_drift_tells_how_steps_are_damped(steps: str) -> None:
    old = fit(ROWS, "y", **FEW_BINS)
    drifted = ROWS.assign(a=ROWS["a"] + 5)
    with pytest.warns(dboost.DriftWarning) as caught:
        options = {"max_iter": 3, "continue_steps": steps, "arcbites": ArcBites(trees_per_visit=1)}
        dboost.fit(drifted, "y", start_from=old, **options)
    (warning,) = caught
    assert ("steps are not damped" in str(warning.message)) == (steps == "full")
    assert ("steps are damped: " in str(warning.message)) == (steps == "damped")


# Arguments of `ArcBites`.


def test_ways_to_write_it() -> None:
    assert read_arcbites(None) is read_arcbites(False) is None
    assert read_arcbites({}) == ArcBites()
    assert read_arcbites(True) == ArcBites(trees_per_visit=1, visits=None, parts=10)
    assert read_arcbites({"n_bites": 3, "order": "cyclic"}) == ArcBites(3, order="cyclic")
    assert make_parameters({"arcbites": {"n_bites": np.int64(3)}}).arcbites == ArcBites(np.int64(3)) == ArcBites(3)
    with pytest.raises(AttributeError):
        ArcBites().n_bites = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"n_bites": 0}, "n_bites=0 must be an integer of at least 1 or None"),
        ({"n_bites": 2.5}, "n_bites=2.5"),
        ({"n_bites": True}, "n_bites=True"),
        ({"trees_per_visit": 0}, "trees_per_visit=0"),
        ({"visits": 0}, "visits=0"),
        ({"early_stopping_rounds": -1}, "early_stopping_rounds=-1"),
        ({"order": "best"}, "order='best' must be one of 'random', 'cyclic', 'adaptive'"),
        ({"bites": 3}, "unknown field 'bites'; there are: n_bites, trees_per_visit"),
        ("yes", "arcbites='yes' must be a dboost.ArcBites"),
        (5, "arcbites=5 must be"),
        ({"parts": 0}, "parts=0 must be an integer of at least 1"),
        ({"parts": 2, "order": "adaptive"}, "parts=2 makes other bites in every cycle, order='adaptive' wants the same"),
        ({"n_bites": 500, "parts": 2}, "n_bites=500 of 2 parts each is more than the 900 rows"),
        ({"n_bites": 901}, "n_bites=901 is more than the 900 rows"),
    ],
)
def test_mistakes(given: Any, complaint: str) -> None:
    with pytest.raises(ParameterError, match=complaint):
        fit(arcbites=given, eval_set=HELD_OUT)


def test_too_few_rows_to_hold_some_out() -> None:
    X = np.arange(3.0)[:, None]
    seed = next(seed for seed in range(9) if not held_out_rows_of(3, seed).selects(np.arange(3)).any())
    with pytest.raises(ParameterError, match="of 3 rows none can be held out"):
        fit(X, X[:, 0], arcbites=ArcBites(2), random_state=seed)
    assert fit(X, X[:, 0], arcbites=ArcBites(3, 1, visits=2)).n_iter_ >= 2, "bites without rows are passed over"


def test_estimators() -> None:
    X, y = FRAME[["x", "age"]], FRAME["y"]
    watched = DBoostClassifier(
        arcbites=ArcBites(), early_stopping=True, n_iter_no_change=2, max_iter=80, learning_rate=0.5
    ).fit(X, y > 0)
    assert watched.booster_.history["visit"].max() > 1
    assert watched.n_iter_ < len(watched.booster_.history)
    assert len(watched.validation_score_) == watched.n_iter_ + 1
    assert watched.validation_score_.argmax() == watched.n_iter_
    with pytest.raises(ParameterError, match="arcbites do not go together with a warm start"):
        DBoostRegressor(arcbites=ArcBites(3, 2), warm_start=True).fit(X, y).fit(X, y)
    with pytest.raises(ParameterError, match="cannot be stopped by the training loss"):
        DBoostRegressor(arcbites=ArcBites(), early_stopping=True, validation_fraction=None).fit(X, y)
