"""Memory of a fit beyond the process: codes twice, a few numbers a row, a few partitions; never the raw table."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COLUMNS, ROWS_A_PART, PARTS = 40, 50_000, 40
MIB = 2**20

PRELUDE = f"""
    import resource, sys
    import dask, dask.dataframe as dd, numpy as np, pandas as pd
    import dboost
    dask.config.set({{"temporary-directory": sys.argv[1]}})
    NAMES = [f"c{{j}}" for j in range({COLUMNS})]
    def part(i, n={ROWS_A_PART}):
        rng = np.random.default_rng(i)
        frame = pd.DataFrame(rng.random((n, {COLUMNS})), columns=NAMES)
        return frame.assign(y=frame["c0"] + rng.random(n))
    def lazy(n_parts):
        return dd.from_map(part, range(n_parts), meta=part(0, 5)[:0])
    def fit(data, y):
        return dboost.fit(data, y, max_iter=3, n_threads=2)
    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    fit(lazy(2), "y")
"""


def grown(program: str, folder: Path) -> float:
    """Return how many MiB the program adds to the peak memory of a new process, after a prelude that fits a small table."""
    script = textwrap.dedent(PRELUDE) + textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def bytes_a_row() -> int:
    """Return the MiB of codes and tiles (two of 32 bytes); target, score, gradient, leaf; two records."""
    return COLUMNS + 64 + (8 + 8 + 4 + 1) + 16


@pytest.mark.slow
def test_lazy_partitions(tmp_path: Path) -> None:
    """640 MB of rows that are created on request, 16 MB a partition."""
    program = f"""
        before = peak()
        assert fit(lazy({PARTS}), "y").sources[0]["rows"] == {ROWS_A_PART * PARTS}
        print(peak() - before)
    """
    found = grown(program, tmp_path)
    raw = ROWS_A_PART * PARTS * COLUMNS * 8 / MIB
    kept = ROWS_A_PART * PARTS * bytes_a_row() / MIB
    # Besides: 64 MiB of sampled values, some partitions, and what the C library returns of neither.
    assert found < kept + 150, f"{found:.0f} MiB where {kept:.0f} are kept"
    assert found < 0.7 * raw
    assert not list(tmp_path.iterdir()), "temporary files are gone"


@pytest.mark.slow
def test_arrays_are_not_copied(tmp_path: Path) -> None:
    n_parts = 10
    n = ROWS_A_PART * n_parts
    program = f"""
        X = np.empty(({n}, {COLUMNS}), np.float64)
        for i in range({n_parts}):
            X[i * {ROWS_A_PART} : (i + 1) * {ROWS_A_PART}] = np.random.default_rng(i).random(({ROWS_A_PART}, {COLUMNS}))
        y = X[:, 0].astype(float)
        before = peak()
        fit(X, y)
        print(peak() - before)
    """
    found = grown(program, tmp_path)
    kept = n * bytes_a_row() / MIB
    # The sample of 200,000 rows, and its sorted copy, are released before the tiles are allocated.
    assert found < kept + 40, f"{found:.0f} MiB where {kept:.0f} are kept"


@pytest.mark.slow
def test_held_out_rows_cost_their_codes_only(tmp_path: Path) -> None:
    program = f"""
        train, test = lazy(4), lazy({PARTS // 4})
        dboost.fit(train, "y", max_iter=2, eval_set=lazy(2))
        before = peak()
        dboost.fit(train, "y", max_iter=3, eval_set=test, n_threads=2)
        print(peak() - before)
    """
    found = grown(program, tmp_path)
    kept = ROWS_A_PART * PARTS // 4 * (COLUMNS + 3 * 8) / MIB
    assert found < kept + 110, f"{found:.0f} MiB where {kept:.0f} are kept"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["frame", "files"])
def test_one_partition_much_larger_than_the_limit(kind: str, tmp_path: Path) -> None:
    """Of a partition in memory, or a file of row groups, slices are copied: the limit is kept."""
    n, limit = ROWS_A_PART * 10, 48
    program = f"""
        def streamed(data):
            booster = dboost.fit(data, "y", max_iter=2, max_leaf_nodes=8, n_threads=1, memory_limit="{limit}MiB")
            assert (booster.history["bytes_read"] > 0).all()
            return booster
        if {kind!r} == "frame":
            frame = part(0, {n})
            big = dd.from_map(lambda _: frame, [0], meta=frame[:0])
        else:
            import pyarrow as pa, pyarrow.parquet as pq
            small, big = [f"{{sys.argv[1]}}/{{i}}.parquet" for i in range(8)], sys.argv[1] + "/big.parquet"
            for i, place in enumerate(small):
                pq.write_table(pa.Table.from_pandas(part(i)), place)
            with pq.ParquetWriter(big, pa.Table.from_pandas(part(0, 5)).schema) as writer:
                for i in range(10):
                    writer.write_table(pa.Table.from_pandas(part(i)), row_group_size={ROWS_A_PART // 2})
        streamed(lazy(8) if {kind!r} == "frame" else small)
        before = peak()
        assert streamed(big).sources[0]["rows"] == {n}
        print(peak() - before)
    """
    found = grown(program, tmp_path)
    columns = n * COLUMNS * 8 / MIB
    assert columns > 2 * limit
    # The peak before is that of a fit with the same limit; a row group and allocator overhead are added to it.
    assert found < limit, f"{found:.0f} MiB with a limit of {limit}, where the columns have {columns:.0f}"


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="the peak memory of a process cannot be reset here")
@pytest.mark.parametrize(
    ("n_groups", "writing"), [(26, "{}"), (1, '{"use_dictionary": False, "data_page_size": 2**23, "compression": "zstd"}')]
)
def test_row_groups_of_any_size(n_groups: int, writing: str, tmp_path: Path) -> None:
    """A file of 26 MiB, in one row group or in many: the peak of memory during a fit is about the limit of 12 MiB."""
    program = f"""
        import gc, subprocess
        limit, n = 12 * 2**20, 26 * 2**20 // (8 * 17)
        def fit(path):
            return dboost.fit(path, "y", max_iter=2, max_leaf_nodes=8, n_threads=1, memory_limit=limit)
        WRITE = '''
        import sys, numpy as np, pyarrow as pa, pyarrow.parquet as pq
        path, n, n_groups = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
        names = ["y", *(f"c{{j}}" for j in range(16))]
        table = pa.table({{name: np.random.default_rng(j).random(n) for j, name in enumerate(names)}})
        pq.write_table(table, path, row_group_size=-(-n // n_groups), **{writing})
        '''
        small, large = sys.argv[1] + "/small.parquet", sys.argv[1] + "/large.parquet"
        for path, rows, groups in ((small, n // 2, 3), (large, n, {n_groups})):  # a process of its own, whose memory is gone
            subprocess.run([sys.executable, "-c", textwrap.dedent(WRITE), path, str(rows), str(groups)], check=True)
        fit(small)  # loads code
        gc.collect()
        def size(field):
            (line,) = [line for line in open("/proc/self/status") if line.startswith(field)]
            return int(line.split()[1]) * 1024
        before = size("VmRSS")
        with open("/proc/self/clear_refs", "w") as peak_of_memory:
            peak_of_memory.write("5")
        assert fit(large).sources[0]["rows"] == n
        print((size("VmHWM") - before) / limit)
    """
    found = grown(program.replace("import gc,", "import gc, textwrap,"), tmp_path)
    assert found < 1.35, f"{found:.2f} times the limit"  # 0.8 to 1.1; 2.6 when decoders kept their memory
