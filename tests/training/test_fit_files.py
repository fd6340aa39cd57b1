"""A reader of one fit opens the files that the fit enters: a plain fit enters none of an option that is not in use."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import dboost

PACKAGE = Path(dboost.__file__).parent
#: Packages and modules of options: a cluster, other kinds of input, evaluation sets, arcbites, a memory limit, a checkpoint.
OPTIONS = {
    "cluster", "config.py", "data/sources/csv_files.py", "data/sources/arrow_datasets.py", "data/sources/files.py",
    "data/sources/parquet.py", "data/sources/paths.py", "data/sources/row_filter.py", "data/sources/sources.py",
    "data/sources/table_versions.py", "data/tables/dask_collections.py", "data/tables/eval_tables.py", "dataset.py",
    "metrics/named.py", "prepared/dataset_files.py", "prepared/dataset_rows.py", "prepared/prepare.py",
    "rows/block_file.py", "rows/shared_codes.py", "session/bites.py",
    "session/evaluation_rows.py", "session/memory.py", "training/arcbites.py", "training/auto_iterations.py",
    "training/checkpoint.py", "rows/bin_proposal.py", "trees/rounds_in_files.py", "trees/rounds_in_memory.py",
    "trees/split_finder.py", "trees/tree_growth.py",
}  # fmt: skip
#: More files than this are too many for one evening.
MOST_FILES = 72


def entered_files(**options: Any) -> set[str]:
    """Return the files of the package whose functions a fit of an array calls, relative to the package."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3000, 6))
    target = (rows[:, 0] + rng.normal(size=3000) > 0).astype(int)
    options |= {"max_iter": 2, "progress": False}
    dboost.fit(rows, target, **options)  # imports and compiles what is needed
    codes = set()

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            codes.add(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        dboost.fit(rows, target, **options)
    finally:
        sys.setprofile(before)
    paths = (Path(code.co_filename) for code in codes)
    return {path.relative_to(PACKAGE).as_posix() for path in paths if path.is_relative_to(PACKAGE)}


def test_a_plain_fit_enters_no_file_of_an_option() -> None:
    files = entered_files()
    assert "training/fit.py" in files and "trees/whole_tree_kernel.py" in files
    assert {file for file in files if file in OPTIONS or file.partition("/")[0] in OPTIONS} == set()
    assert len(files) <= MOST_FILES, sorted(files)


def test_options_enter_their_files() -> None:
    assert "session/memory.py" in entered_files(memory_limit="1GiB")
    assert {"training/arcbites.py", "session/bites.py"} <= entered_files(arcbites=dboost.ArcBites(n_bites=3, trees_per_visit=1))
