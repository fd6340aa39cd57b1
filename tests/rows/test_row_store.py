"""Row stores: in files as in memory, rows arrive in pieces of any length, threads share them, and some are kept."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dboost.kernels.threads import Team
from dboost.rows.block_file import Field
from dboost.rows.row_store import FieldGroup, InFiles, RowShares, RowStore
from tests.helpers.examples import examples


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


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
    return {name: values[which] if name == "tiles" else values[..., which] for name, values in fields.items()}


def content(store: RowStore, section: int, n_threads: int) -> dict[str, np.ndarray]:
    """Return all rows of a section, which threads read one after the other."""
    names, starts = ["codes", "none", "tiles", "raw", "saved"], [0]
    found: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for thread in range(n_threads):
        for part in store.walk(names, section=section, thread=thread, n_threads=n_threads):
            assert part.start == starts[-1]
            starts.append(part.start + part.n_rows)
            for name, values in some({name: part.fields[name] for name in names}, slice(part.first, part.last)).items():
                found[name].append(values.copy())
    assert starts[-1] == store.sizes[section]
    return {name: np.concatenate(parts, axis=0 if name == "tiles" else -1) for name, parts in found.items() if parts}


@examples(40)
@given(
    data=st.data(),
    sizes=st.lists(st.integers(0, 20), min_size=1, max_size=3),
    block_rows=st.sampled_from([None, 1, 4, 64, "given"]),
    n_threads=st.integers(1, 3),
)
def test_rows_are_what_was_appended(
    root: Path, data: st.DataObject, sizes: list[int], block_rows: int | str | None, n_threads: int
) -> None:
    place = InFiles(block_rows, root) if isinstance(block_rows, int) else None
    if block_rows == "given":
        block_sizes = data.draw(st.lists(st.integers(1, 6), max_size=8))
        sizes, place = [sum(block_sizes)], InFiles(6, root, tuple(block_sizes))
    n = sum(sizes)
    of = rows(n)
    sections = np.array(data.draw(st.permutations(np.repeat(range(len(sizes)), sizes).tolist())), np.int64)
    bounds = sorted(data.draw(st.lists(st.integers(0, n), max_size=4)))
    store = RowStore(GROUPS, sizes, place)
    for first, last in zip([0, *bounds], [*bounds, n], strict=True):
        for k in range(len(sizes)):
            chosen = np.flatnonzero(sections[first:last] == k)
            store.append(len(chosen), some(of, slice(first, last)) | {"unknown": np.empty(0)}, chosen, k)

    def check(store: RowStore, expected: dict[str, np.ndarray], sections: np.ndarray) -> None:
        for k, size in enumerate(store.sizes):
            if size:
                of_section = some(expected, np.flatnonzero(sections == k))
                np.testing.assert_equal(content(store, k, n_threads), of_section)
                np.testing.assert_equal(store.load(k), of_section)

    expected = of | {"saved": np.zeros(n)}
    check(store, expected, sections)
    for k in range(len(sizes)):
        for thread in range(n_threads):
            for part in store.walk(["raw"], ["saved"], section=k, thread=thread, n_threads=n_threads):
                part.fields["saved"][part.first : part.last] = part.fields["raw"][0, part.first : part.last]
        store.save("raw", -of["raw"][:, sections == k], k)
    expected |= {"saved": of["raw"][0], "raw": -of["raw"]}
    check(store, expected, sections)
    stays = expected["saved"] > 0
    kept = store.subset(
        [int(stays[sections == k].sum()) for k in range(len(sizes))],
        lambda part: part.fields["saved"][part.first : part.last] > 0,
    )
    check(kept, some(expected, np.flatnonzero(stays)), sections[stays])
    check(store, expected, sections)
    for one in (kept, store):
        one.close()
        one.close()
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("place", [None, InFiles(4, None)])
def test_a_store_has_the_number_of_rows_that_was_promised(place: InFiles | None) -> None:
    store = RowStore(GROUPS, [5], place)
    store.append(4, rows(4))
    with pytest.raises(AssertionError, match="more rows"):
        store.append(2, rows(2))
    with pytest.raises(AssertionError, match="fewer rows"):
        next(store.walk(["raw"]))
    store.close()


def test_a_store_that_cannot_be_made_leaves_no_files(tmp_path: Path) -> None:
    twice = [GROUPS[0], GROUPS[0]]
    with pytest.raises(OSError, match="fixed"):
        RowStore(twice, [5], InFiles(4, tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_arrays_are_taken_over_without_a_copy() -> None:
    given = rows(20)
    store = RowStore(GROUPS, [20], arrays=given)
    found = store.load()
    assert all(np.shares_memory(found[name], array) for name, array in given.items() if array.size)
    assert (found["saved"] == 0).all()
    with pytest.raises(AssertionError, match="raw has another form"):
        RowStore(GROUPS, [20], arrays=given | {"raw": given["raw"].astype(np.float32)})


def shares_of(root: Path, n: int, block_rows: int | None, n_threads: int) -> RowShares:
    store = RowStore(GROUPS, [n], None if block_rows is None else InFiles(block_rows, root))
    store.append(n, rows(n))
    return RowShares(store, Team(n_threads))


@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("block_rows", [None, 4, 10])
def test_shares_are_all_rows_once(root: Path, block_rows: int | None, n_threads: int) -> None:
    shares = shares_of(root, 20, block_rows, n_threads)
    assert shares.n == (min(n_threads, 2) if block_rows == 10 else n_threads)
    sums = shares.map(lambda fields, first, last, _: fields["raw"][:, first:last].sum(), lambda k: shares.walk(k, ["raw"]))
    assert len(sums) == (shares.n if block_rows is None else 20 // block_rows)
    assert sum(sums) == pytest.approx(rows(20)["raw"].sum())
    stays = np.arange(20) % 3 == 0
    np.testing.assert_array_equal(shares.subset(stays).load()["raw"], rows(20)["raw"][:, stays])
    shares.team.close()


def test_a_walk_ends_when_another_thread_has_failed(root: Path) -> None:
    shares, has_begun, n_walked = shares_of(root, 20, 1, 2), threading.Event(), 0

    def work(k: int) -> None:
        nonlocal n_walked
        if k == 0:
            has_begun.wait()
            raise ValueError("of the first thread")
        for _ in shares.walk(k, ["raw"]):
            n_walked += 1
            has_begun.set()
            while not shares.team.is_halted:
                time.sleep(0.001)

    with pytest.raises(ValueError, match="of the first thread"):
        shares.run(work)
    assert n_walked == 1
    shares.team.close()
