"""What is imported when: libraries that nobody needs yet stay out."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa

from dboost import late

ARRAYS_ONLY = """
import sys
import numpy as np
import dboost
X = np.arange(200.0).reshape(100, 2)
booster = dboost.fit(X, X[:, 0] > 50, max_iter=2, progress=False)
booster.predict(X)
print(*sorted({name.partition(".")[0] for name in sys.modules} & {"pandas", "pyarrow", "dask", "sklearn", "matplotlib"}))
print(len(booster.history))
print("pandas" in sys.modules)
"""


def test_training_on_arrays_imports_no_library_of_tables() -> None:
    done = subprocess.run([sys.executable, "-c", ARRAYS_ONLY], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["", "2", "True"]


def test_what_objects_are() -> None:
    assert late.is_a(pd.Series([1]), "pandas", "DataFrame", "Series")
    assert not late.is_a(pd.Series([1]), "pandas", "DataFrame")
    assert late.is_a(pa.array([1]), "pyarrow", "Array")
    assert not late.is_a(np.zeros(1), "pandas", "DataFrame", "no_such_class")
    assert not late.is_a(pd.Series([1]), "a_library_that_nobody_imported", "Series")
    assert late.pd.DataFrame is pd.DataFrame
    assert late.pa.table is pa.table
