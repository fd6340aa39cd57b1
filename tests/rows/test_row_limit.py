"""More rows than a shard in memory can number raise an error that names a solution: streaming, or more workers."""

from __future__ import annotations

import dask.dataframe as dd
import pytest

import dboost
from dboost.errors import DataError
from dboost.rows.shard import check_rows_in_memory
from tests.helpers.clusters import threads_cluster
from tests.helpers.fits import NUMERIC, cut, mixed_frame, saved
from tests.helpers.tune import Tune

FRAME = mixed_frame(300)
OPTIONS = {"features": NUMERIC, "max_iter": 2, "progress": False}


def test_the_numbers_of_rows_have_32_bits() -> None:
    check_rows_in_memory(2**32)
    with pytest.raises(DataError, match=r"4,294,967,297 rows .* more than the 4,294,967,296 .* memory_limit .* more workers"):
        check_rows_in_memory(2**32 + 1)


def test_in_one_process_they_are_streamed(tune: Tune) -> None:
    expected = saved(dboost.fit(FRAME, "y", **OPTIONS))
    tune(session_rows=299)
    with pytest.raises(DataError, match="300 rows"):
        dboost.fit(FRAME, "y", **OPTIONS)
    with pytest.raises(DataError, match="300 rows"):
        dboost.fit(cut(FRAME, [100]), "y", memory_limit="1GiB", **OPTIONS)
    tune(resident_rows=0, block_rows=64)
    assert saved(dboost.fit(FRAME, "y", memory_limit="64MiB", **OPTIONS)) == expected
    light = FRAME.assign(w=(FRAME.index < 299) * 1.0)
    dboost.fit(light, "y", sample_weight="w", **OPTIONS)  # rows of weight zero have no number


def test_on_a_cluster_more_workers_number_them(tune: Tune) -> None:
    expected = saved(dboost.fit(FRAME, "y", **OPTIONS))
    tune(session_rows=160)
    lazy = dd.from_pandas(FRAME, npartitions=2)
    with threads_cluster(1, 1) as client, pytest.raises(DataError, match="300 rows"):
        dboost.fit(lazy, "y", client=client, **OPTIONS)
    with threads_cluster(2, 1) as client:
        assert saved(dboost.fit(lazy, "y", client=client, **OPTIONS)) == expected
