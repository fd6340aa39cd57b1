"""Row stores: in files as in memory, rows arrive in pieces of any length, threads share them, and some of them are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dboost.storage.block_file import Field
from dboost.storage.row_store import FieldGroup, InFiles, RowStore
from tests.helpers.examples import examples

GROUPS = [
    FieldGroup(
        "fixed", [Field("codes", "<u1", (3,)), Field("none", "<u2", (0,)), Field("tiles", "<u8", (), (2,))], sealed=True
    ),
    FieldGroup("scores", [Field("raw", "<f8", (2,)), Field("saved", "<f8")], sealed=False),
]


def rows(n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(n)
    return {
        "codes": rng.integers(0, 256, (3, n)).astype(np.uint8),
        "none": np.empty((0, n), np.uint16),
        "tiles": rng.integers(0, 2**60, (n, 2)).astype(np.uint64),
        "raw": rng.normal(size=(2, n)),
    }


def some(fields: dict[str, np.ndarray], which: slice | np.ndarray) -> dict[str, np.ndarray]:
    return {name: values[which] if name == "tiles" else values[:, which] for name, values in fields.items()}


def filled(fields: dict[str, np.ndarray], bounds: list[int], place: InFiles | None) -> RowStore:
    n = len(fields["tiles"])
    store = RowStore(GROUPS, n, place)
    for first, last in zip([0, *bounds], [*bounds, n], strict=True):
        store.append(last - first, some(fields, slice(first, last)) | {"unknown": np.empty(0)})
    return store


def content(store: RowStore, n_threads: int = 1) -> dict[str, np.ndarray]:
    """Return all rows, which threads read one after the other."""
    names = ["codes", "none", "tiles", "raw", "saved"]
    found: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for thread in range(n_threads):
        for fields, first, last in store.walk(names, thread=thread, n_threads=n_threads):
            for name in names:
                at = slice(first, last)
                found[name].append((fields[name][at] if name == "tiles" else fields[name][..., at]).copy())
    return {name: np.concatenate(parts, axis=0 if name == "tiles" else -1) for name, parts in found.items()}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


@examples(40)
@given(data=st.data(), n=st.integers(1, 40), block_rows=st.sampled_from([None, 1, 4, 64]), n_threads=st.integers(1, 3))
def test_rows_are_what_was_appended(root: Path, data: st.DataObject, n: int, block_rows: int | None, n_threads: int) -> None:
    bounds = sorted(data.draw(st.lists(st.integers(0, n), max_size=4)))
    place = None if block_rows is None else InFiles(block_rows, root)
    given_rows = rows(n)
    store = filled(given_rows, bounds, place)
    expected = given_rows | {"saved": np.zeros(n)}
    np.testing.assert_equal(content(store, n_threads), expected)
    for thread in range(n_threads):
        for fields, first, last in store.walk(["raw"], ["saved"], thread=thread, n_threads=n_threads):
            fields["saved"][first:last] = fields["raw"][0, first:last]
    expected["saved"] = given_rows["raw"][0]
    np.testing.assert_equal(content(store), expected)
    stays = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)), bool)
    kept = store.subset(stays)
    if kept.n_rows:
        np.testing.assert_equal(
            content(kept), {name: v[stays] if name in ("tiles", "saved") else v[:, stays] for name, v in expected.items()}
        )
    np.testing.assert_equal(content(store), expected)
    assert store.nbytes == (n * (3 + 16 + 16 + 8) if place is None else 0)
    for one in (kept, store):
        one.close()
        one.close()
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("place", [None, InFiles(4, None)])
def test_a_store_has_the_number_of_rows_that_was_promised(place: InFiles | None) -> None:
    store = RowStore(GROUPS, 5, place)
    store.append(4, rows(4))
    with pytest.raises(AssertionError, match="more rows"):
        store.append(2, rows(2))
    with pytest.raises(AssertionError, match="fewer rows"):
        next(store.walk(["raw"]))
    store.close()


def test_a_store_that_cannot_be_made_leaves_no_files(tmp_path: Path) -> None:
    twice = [GROUPS[0], GROUPS[0]]
    with pytest.raises(OSError, match="fixed"):
        RowStore(twice, 5, InFiles(4, tmp_path))
    assert list(tmp_path.iterdir()) == []
