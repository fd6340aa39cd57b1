"""Every combination of table, parameters and front end either fits and keeps the guarantees, or is rejected with one sentence,
and does so everywhere: in process, on workers, streamed, prepared, killed and resumed, from the command line, by an estimator.

`tests.helpers.combinations` draws the calls, `tests.helpers.table_forms` writes tables in other forms, and
`tests.helpers.places` has the places. A draw is a function of its number. The environment variable COMBINATIONS is the number
of draws, and COMBINATIONS_FROM the first one's number; a long run is

    COMBINATIONS=2000 COMBINATIONS_FROM=100000 pytest tests/test_combinations.py -m "" -s -k many

A failure prints the draw, reduced to what is needed for it, and the command that repeats it.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from distributed import Client

import dboost
from dboost import Booster, DBoostError
from dboost.cli import MISTAKES
from tests.helpers.clusters import Processes
from tests.helpers.combinations import CATEGORICAL, EMPTY, WORDED_BY_FORM, Draw, drawn
from tests.helpers.drawn_calls import FRONT_ENDS, SUBPROCESS_PLACES, Case, Refused, command, earlier_model, forms, plain, routes
from tests.helpers.fits import saved
from tests.helpers.places import CLUSTER_PLACES, PLACES, PROCESS_PLACES, Place, small_things

#: The expected fraction of draws that fit, a lower bound.
SHARE = 0.75


@pytest.fixture(autouse=True)
def tiny() -> Iterator[None]:
    logging.getLogger("distributed.worker").setLevel(logging.CRITICAL)  # it logs errors that are expected
    with small_things():
        yield


# Properties of every fitted model.


def check_predictions(case: Case, booster: Booster) -> None:
    """Rows are predicted alike in any order and any form of the table, also from files and one by one."""
    draw, n_classes = case.draw, 0 if booster.classes_ is None else len(booster.classes_)
    table, rng = draw.table(9, 70), np.random.default_rng(draw.seed)
    order = rng.permutation(len(table))
    turned = table.iloc[order].reset_index(drop=True)
    data = case.features(table, "ordered")
    again = case.features(turned, "turned")
    if draw.array is None:
        again = again[[*rng.permutation(draw.names)]].assign(more=1)
    asked: dict[str, Callable[[Any], Any]] = {
        "prediction": booster.predict,
        "raw_score": lambda X: booster.predict(X, raw_score=True),
    }
    n_outputs, n_numbers = booster.ensemble.n_outputs, draw.n_numbers
    shapes: list[tuple[int, ...]] = [(70, n) if n > 1 else (70,) for n in (n_numbers, n_outputs)]
    if draw.loss == "normal":
        asked["distribution"] = booster.predict_distribution
        shapes.append((70, 2))
    if n_classes:
        asked["probability"] = booster.predict_proba
        shapes.append((70, n_classes))
        costs = rng.random((n_classes, n_classes))
        asked["decision"] = lambda X: booster.decide(X, costs)
        shapes.append((70,))
    form = Random(draw.seed).choice(forms(draw, "memory", "lazy", "path", "list"))
    other = replace(case, form=form, place="predictions").features(table, "others")
    for (what, ask), shape in zip(asked.items(), shapes, strict=True):
        found = plain(ask(data))
        assert found.shape == shape
        if found.dtype.kind == "f":
            assert np.isfinite(found).all()
        np.testing.assert_array_equal(plain(ask(again)), found[order])
        np.testing.assert_array_equal(plain(ask(other)), found, f"{what} of {form}")
        if what != "decision":
            one = booster.predictor(what)
            rows = table[draw.names].iloc[:3].to_dict("records") if draw.array is None else data[:3]
            np.testing.assert_array_equal([one(row) for row in rows], found[:3], f"{what} of single rows")
    if n_classes:
        np.testing.assert_allclose(plain(booster.predict_proba(data)).sum(axis=1), 1.0)
        assert set(plain(booster.predict(data)).tolist()) <= set(booster.classes_.tolist())
    if isinstance(other, str | Path) and booster.custom_loss is None:
        booster.save(case.folder / "predicts.dboost")
        command("predict", str(case.folder / "predicts.dboost"), str(other), "--output", str(case.folder / "out.parquet"))
        found = pq.read_table(case.folder / "out.parquet")
        found = found["prediction"].to_numpy() if n_numbers == 1 else found.to_pandas().to_numpy()
        np.testing.assert_array_equal(found, plain(booster.predict(data)), f"the command line of {form}")
    trained = plain(booster.predict(case.features(draw.table(), "training"), raw_score=True))
    assert np.isfinite(trained).all() and len(trained) == draw.n_rows


def check_kinds(case: Case, booster: Booster) -> None:
    """Text in place of numbers is rejected, and numbers in place of text."""
    draw, kind = case.draw, case.draw.columns[0]
    first = draw.names[0]
    of_numbers = kind not in CATEGORICAL or kind in (
        "categories of numbers",
        "categories of floats",
        "truth as categories",
        "runs of numbers",
    )
    if draw.array is not None or kind in EMPTY or not draw.table()[first].notna().any():
        return
    table = draw.table(9, 70)[draw.names].assign(**{first: "text" if of_numbers else 5})
    for form in (None, "dask"):
        with pytest.raises(DBoostError) as caught:
            plain(booster.predict(replace(case, form=form).features(table, "kinds")))
        check_refusal(caught.value)
        assert first in str(caught.value)


def check_stored(case: Case, booster: Booster) -> None:
    X, folder = case.features(case.draw.table(9, 70), "stored"), case.folder
    expected = plain(booster.predict(X, raw_score=True))
    for name in ("model.json", "model.dboost"):
        booster.save(folder / name)
        loaded = dboost.load(folder / name)
        assert loaded == booster
        np.testing.assert_array_equal(plain(loaded.predict(X, raw_score=True)), expected)
        np.testing.assert_array_equal(plain(loaded.predict(X)), plain(booster.predict(X)))
        before = (folder / name).read_bytes()
        loaded.save(folder / name)
        assert (folder / name).read_bytes() == before
    again = pickle.loads(pickle.dumps(booster))
    assert saved(again) == saved(booster)
    np.testing.assert_array_equal(plain(again.predict(X)), plain(booster.predict(X)))


def groups(draw: Draw) -> list[set[int]] | None:
    """Return the features that may occur on one path."""
    wanted, n = draw.options.get("interaction_cst"), len(draw.columns)
    if wanted is None:
        return None
    if wanted == "no_interactions":
        return [{j} for j in range(n)]
    if wanted == "pairwise":
        return [{i, j} for i in range(n) for j in range(n)]
    return [*map(set, wanted), set(range(n)) - {j for group in wanted for j in group}]


def check_trees(draw: Draw, booster: Booster, n_before: int) -> None:
    nodes = booster.to_frame()
    allowed = groups(draw)
    number = {name: j for j, name in enumerate(booster.feature_names_in_)}
    for _, tree in nodes[nodes["iteration"] > n_before].groupby(["iteration", booster.outputs.axis], dropna=False):
        leaves = tree[tree["feature"].isna()]
        assert np.isfinite(tree["value"].dropna()).all()
        is_forest = draw.options.get("boosting") == "forest"
        most = draw.options.get("max_leaf_nodes", None if is_forest else 31)
        assert most is None or len(leaves) <= most
        assert leaves["depth"].max() <= (draw.options.get("max_depth") or np.inf)
        if len(leaves) > 1:
            assert leaves["count"].min() >= draw.options.get("min_samples_leaf", 1 if is_forest else 20)
        if allowed is not None:
            children = tree.set_index("node")
            paths = [(0, frozenset())]
            while paths:
                node, met = paths.pop()
                row = children.loc[node]
                if row["left"] < 0:
                    assert any(met <= group for group in allowed)
                else:
                    met |= {number[row["feature"]]}
                    paths += [(row["left"], met), (row["right"], met)]
    for name, sign in draw.options.get("monotonic_cst", {}).items():
        table = draw.table(9, 20)
        column = np.sort(np.concatenate([draw.table()[name].dropna().to_numpy(np.float64), [-1e308, 0.0, 1e308]]))
        grid = table.loc[np.repeat(table.index, len(column))].reset_index(drop=True)
        grid[name] = np.tile(column, len(table))
        X = grid[draw.names] if draw.array is None else grid[draw.names].to_numpy(np.float64)
        curves = plain(booster.predict(X, raw_score=draw.loss != "normal", iteration_range=(n_before, booster.n_iter_)))
        assert (sign * np.diff(curves.reshape(len(table), len(column), -1), axis=1) >= 0).all()


def check_model(case: Case, booster: Booster) -> None:
    draw, earlier = case.draw, case.earlier
    if draw.refits:
        assert earlier is not None and booster.n_iter_ == earlier.n_iter_
    else:
        n_before = 0 if earlier is None else earlier.n_iter_
        grown = booster.n_iter_ - n_before
        assert 0 <= grown <= draw.options["max_iter"]
        if not {"early_stopping_rounds", "stopping"} & set(draw.options) and draw.arcbites is None:
            assert grown == draw.options["max_iter"]
        check_trees(draw, booster, n_before)
    check_predictions(case, booster)
    check_kinds(case, booster)
    check_stored(case, booster)


def check_refusal(error: DBoostError) -> None:
    """The message is one readable sentence."""
    text = str(error)
    assert 15 <= len(text) <= 400, text
    assert "\n" not in text and "Traceback" not in text, text
    assert not re.search(r"0x[0-9a-f]{6}|object at|<class|array\(|dtype=|Error\(", text), text
    assert len(text.split()) >= 3, text


# The same model, or the same error, in another place.


class Outcome:
    """What a call does: a model, or an error, and the warnings."""

    def __init__(self, run: Callable[[], Booster]) -> None:
        self.booster: Booster | None = None
        self.error: DBoostError | None = None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                self.booster = without_offset_name(run())
            except DBoostError as error:
                check_refusal(error)
                self.error = error
        self.warnings = sorted({sentence(str(one.message)) for one in caught if is_ours(one)})

    def __str__(self) -> str:
        return "a model" if self.error is None else f"{type(self.error).__name__}: {self.error}"


def without_offset_name(booster: Booster) -> Booster:
    """Forget the offset, which has no name in a fit with values, and which rows to predict have here."""
    sources = tuple({key: value for key, value in source.items() if key != "offset"} for source in booster.ensemble.sources)
    booster.ensemble = replace(booster.ensemble, sources=sources)
    return booster


def is_ours(warning: warnings.WarningMessage) -> bool:
    """Return whether dboost warns; raise an AssertionError for a warning about its own code."""
    if issubclass(warning.category, ResourceWarning):  # raised when garbage is collected: of any code that ran before
        return False
    assert not issubclass(warning.category, RuntimeWarning), f"{warning.filename}:{warning.lineno}: {warning.message}"
    is_user = issubclass(warning.category, UserWarning | dboost.DriftWarning)
    if "/dboost/" in warning.filename and "/tests/" not in warning.filename and not is_user:
        raise AssertionError(f"{warning.filename}:{warning.lineno}: {warning.message}")
    return is_user and not re.search(OF_OTHERS, str(warning.message))


#: Warnings of other libraries, and of the place.
OF_OTHERS = "Sending large graph|column-vector y was passed|no eval_set was given"


def sentence(message: str) -> str:
    """Return a message without the details of the draw and the place."""
    message = re.sub(r"; the columns are .*", "", message)  # without the roles, if they are given apart
    message = message.replace(" of those of positive weight", "")  # the rows that a prepared data set knows
    message = message.removesuffix("; --skip-missing-target leaves these rows out")  # of the command line only
    message = re.sub(r"\bpartition \d+: | of partition \d+|, partition \d+|: all \d+ partitions are empty$", "", message)
    return re.sub(r" '[^']*'| /\S*| [\d.,]+(e[+-]?\d+)?", "", message)


def first_difference(found: bytes, expected: bytes) -> str:
    """Return the first lines of two model files that differ, without their digests."""
    lines = zip(found.decode().splitlines(), expected.decode().splitlines(), strict=False)
    differing = [(one, other) for one, other in lines if one != other and "sha256" not in one]
    return " instead of ".join(line.strip()[:150] for line in differing[0]) if differing else "one is longer"


def check_place(case: Case, place: Place, expected: Outcome) -> None:
    found = Outcome(lambda: place.run(case))
    where = f"{case.place} ({case.form}{', roles apart' if case.is_apart else ''})"
    assert (found.error is None) == (expected.error is None), f"{where}: {found}, elsewhere {expected}"
    if found.error is not None and expected.error is not None and place.same_words:
        is_class = type(found.error) is type(expected.error)
        if isinstance(found.error, Refused):
            is_class = found.error.status == (2 if isinstance(expected.error, MISTAKES) else 1)
        # Columns of a frame have names, those of an array have none.
        is_named = case.draw.array is not None and case.form is not None and case.form.endswith("frame")
        is_class = is_class or is_named
        words = [sentence(str(error)) for error in (found.error, expected.error)]
        is_same = case.draw.mistake in WORDED_BY_FORM or words[0] == words[1] or is_named
        assert is_class and is_same, f"{where}: {found}, elsewhere {expected}"
    if found.booster is not None and expected.booster is not None:
        named = False if case.draw.array is not None else None
        models = (saved(found.booster, named=named), saved(expected.booster, named=named))
        assert models[0] == models[1], f"{where} gives another model: {first_difference(*models)}"
        tables = (case, replace(case, form=None))
        ask = case.rng("asked").choice(["predict", "apply"] if found.booster.classes_ is None else ["predict", "predict_proba"])
        values = [getattr(found.booster, ask)(one.features(case.draw.table(9, 70), "there")) for one in tables]
        np.testing.assert_array_equal(plain(values[0], case.client), plain(values[1]), f"{ask}, {where}")
    if place.warns:
        assert found.warnings == expected.warnings, f"{where} warns {found.warnings}, elsewhere {expected.warnings}"


def attempt(draw: Draw, places: dict[str, Place], n_places: int, client: Client | None = None) -> tuple[str, list[str]]:
    """Try a call, check the result, compare it with other places, and return what it is and the places."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            earlier = None
            if draw.earlier is not None:
                try:
                    earlier = earlier_model(draw, folder)
                except DBoostError as error:
                    check_refusal(error)
                    return f"the model to start from: {sentence(str(error))[:70]}", []
        case = Case(earlier, folder, draw=draw)
        expected = Outcome(case.train)
        if expected.booster is not None:
            assert draw.mistake is None, f"{draw.mistake!r} was not refused"
            if draw.number % 3 == 0:  # these checks take as long as two places
                with warnings.catch_warnings():
                    warnings.simplefilter("error", RuntimeWarning)
                    check_model(case, expected.booster)
        visited = []
        n_here = n_places if draw.number % 4 == 0 else 1  # more draws find more than more places of a draw
        for number, (place, form, apart) in enumerate(routes(draw, places, n_here, Random(draw.number + 1))):
            own = folder / f"place {number}"
            own.mkdir()
            there = replace(case, folder=own, client=client, form=form, apart=apart, place=place)
            check_place(there, places[place], expected)
            visited.append(f"{place} | {form}")
    return (
        "fits" if expected.booster is not None else f"{type(expected.error).__name__}: {sentence(str(expected.error))[:70]}",
        visited,
    )


def smaller(draw: Draw) -> Iterator[Draw]:
    """Yield draws with one thing less."""
    for name in draw.options:
        if name not in ("max_iter", "random_state"):
            yield replace(draw, options={key: value for key, value in draw.options.items() if key != name})
    for name in ("weight", "offset", "arcbites", "watched", "earlier"):
        if getattr(draw, name) is not None:
            yield replace(draw, **{name: None})
    used = [*draw.options.get("monotonic_cst", ()), *draw.options.get("categorical_features", ())]
    if len(draw.columns) > 1 and "interaction_cst" not in draw.options and draw.names[-1] not in used:
        yield replace(draw, columns=draw.columns[:-1])
    if draw.n_rows > 20:
        yield replace(draw, n_rows=draw.n_rows // 2)


def examine(n_draws: int, places: dict[str, Place], n_places: int, client: Client | None = None, first: int = 0) -> None:
    """Try that many draws, print the results, and check that enough of them fit and that all agree."""
    outcomes: Counter[str] = Counter()
    visits: Counter[str] = Counter()
    failures: list[str] = []
    began = time.monotonic()

    def failure(draw: Draw) -> str | None:
        try:
            outcome, visited = attempt(draw, places, n_places, client)
        except Exception as error:
            ours = [one for one in traceback.extract_tb(error.__traceback__) if "/site-packages/" not in one.filename]
            places_of_code = " ".join(f"{Path(one.filename).name}:{one.lineno}" for one in ours[-6:])
            return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}\n    at {places_of_code}"
        outcomes[outcome] += 1
        visits.update(visited)
        return None

    for number in range(first, first + n_draws):
        draw = drawn(number)
        problem = failure(draw)
        if problem is None:
            continue
        kept = (outcomes.copy(), visits.copy())
        shrinking = time.monotonic()
        while time.monotonic() - shrinking < 8:
            for one in smaller(draw):
                found = failure(one)
                if found is not None and found.split("\n")[0][:40] == problem.split("\n")[0][:40]:
                    draw, problem = one, found
                    break
            else:
                break
        outcomes, visits = kept
        outcomes["DIFFERS"] += 1
        test = os.environ["PYTEST_CURRENT_TEST"].partition("[")[0].partition(" ")[0]
        repeat = f'COMBINATIONS=1 COMBINATIONS_FROM={number} pytest -m "" -s {test}'
        failures.append(f"draw {number}: {problem}\n    of {draw}\n    repeat it: {repeat}\n")
        print(failures[-1], flush=True)
    print(f"\n{n_draws} draws in {time.monotonic() - began:.0f} s, of which {outcomes['fits']} fitted; others:")
    for reason, count in outcomes.most_common():
        if reason != "fits":
            print(f"{count:6d}  {reason}")
    of_places = Counter(visit.partition(" | ")[0] for visit in visits.elements())
    of_forms = Counter(visit.partition(" | ")[2] for visit in visits.elements())
    print(f"models compared with those of {dict(of_places)}\nof the tables {dict(of_forms)}")
    assert not failures, f"{len(failures)} of {n_draws} draws:\n" + "\n".join(failures)
    # Four standard deviations below the expected fraction are no accident.
    assert outcomes["fits"] >= (SHARE - 4 * (SHARE * (1 - SHARE) / n_draws) ** 0.5) * n_draws


def test_calls_fit_or_are_refused() -> None:
    """Few calls, the same every time: most of them compile kernels of their own, which are found in the cache afterwards."""
    examine(3, PLACES | FRONT_ENDS, 1)


DRAWS, FIRST = int(os.environ.get("COMBINATIONS", 120)), int(os.environ.get("COMBINATIONS_FROM", 0))
#: Draws of a test: of all of them together, a run of thousands would look as if it were stuck.
BLOCK = 20


@pytest.mark.slow
@pytest.mark.in_turns
@pytest.mark.parametrize("first", range(FIRST, FIRST + DRAWS, BLOCK))
def test_many_calls_are_the_same_everywhere(first: int, client: Client) -> None:
    examine(min(BLOCK, FIRST + DRAWS - first), PLACES | FRONT_ENDS | CLUSTER_PLACES, 2, client, first)


@pytest.mark.slow
def test_fits_of_killed_processes_are_resumed() -> None:
    examine(-(-DRAWS // 50), SUBPROCESS_PLACES, 1, first=FIRST)


@pytest.mark.slow
def test_workers_that_are_processes_give_the_same_model() -> None:
    with Processes(2, nanny=True) as processes:
        examine(-(-DRAWS // 20), PROCESS_PLACES, 2, processes.client, FIRST)
