"""Libraries are imported only when they are needed."""

from __future__ import annotations

import subprocess
import sys

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dboost import _lazy_import as lazy_import
from dboost.kernels import KNOWN_NUMBA

ARRAYS_ONLY = """
import sys
import numpy as np
import dboost
X = np.arange(200.0).reshape(100, 2)
booster = dboost.fit(X, X[:, 0] > 50, max_iter=2, progress=False)
booster.predict(X)
late = {"pandas", "pyarrow", "dask", "sklearn", "matplotlib", "fsspec", "narwhals"}
print(*sorted({name.partition(".")[0] for name in sys.modules} & late))
print(len(booster.history))
print("pandas" in sys.modules)
print("numba.np.arrayobj" in sys.modules)
"""


def test_training_on_arrays_imports_neither_libraries_of_tables_nor_the_compiler() -> None:
    """The compiler would take 45 MiB and 0.35 s. A first process may compile what is not in the cache."""
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", ARRAYS_ONLY], capture_output=True, text=True, check=True)
        if done.stdout.endswith("False\n"):
            break
    *libraries, compiler = done.stdout.splitlines()
    assert libraries == ["", "2", "True"], "the table of the history needs pandas"
    assert compiler == "False" or not KNOWN_NUMBA, "other versions of Numba load their compiler with a compiled kernel"


def test_what_objects_are() -> None:
    assert lazy_import.is_a(pd.Series([1]), "pandas", "DataFrame", "Series")
    assert not lazy_import.is_a(pd.Series([1]), "pandas", "DataFrame")
    assert lazy_import.is_a(pa.array([1]), "pyarrow", "Array")
    assert not lazy_import.is_a(np.zeros(1), "pandas", "DataFrame", "no_such_class")
    assert not lazy_import.is_a(pd.Series([1]), "a_library_that_nobody_imported", "Series")
    assert lazy_import.pd.DataFrame is pd.DataFrame
    assert lazy_import.pa.table is pa.table
    assert lazy_import.fsspec.open is fsspec.open


LINEAR_ALGEBRA = """
import sys
import numba
import numpy as np
import dboost
X = np.arange(200.0).reshape(100, 2)
dboost.fit(X, X[:, 0] > 50, max_iter=2, progress=False)
print("scipy.linalg" in sys.modules)
square = numba.njit(lambda a: np.dot(a, a))
print(square(2 * np.eye(2)).tolist(), float(numba.njit(lambda a: np.linalg.inv(a)[0, 0])(2 * np.eye(2))))
print("scipy.linalg" in sys.modules)
"""


@pytest.mark.slow
def test_linear_algebra_is_imported_by_the_kernels_of_others_only() -> None:
    done = subprocess.run([sys.executable, "-c", LINEAR_ALGEBRA], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["False", "[[4.0, 0.0], [0.0, 4.0]] 0.5", "True"]
