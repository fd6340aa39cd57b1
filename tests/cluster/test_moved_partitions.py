"""Partitions that move to another session: rows in files of the other partitions stay, and fingerprints do not change.

Tests with clusters that lose workers are slow; here the same methods are called in this process.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from itertools import count
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dboost
from dboost.cluster.transport.messages import pack, unpack
from dboost.data import CategoryColumn
from dboost.data.columns.read_plan import ReadPlan, make_read_plan
from dboost.schema import Feature
from dboost.session import session
from dboost.session.bites import BiteStore
from dboost.session.evaluation_rows import SessionEvalSets
from dboost.session.fit_records import BuildSpec
from dboost.session.memory import Budget
from dboost.session.partition_batch import PartitionBatch
from dboost.session.table_rows import TableRows
from tests.helpers.fits import NUMERIC, cut, mixed_frame
from tests.helpers.tune import Tune

FRAME, OTHER = mixed_frame(400), mixed_frame(300, seed=1)
OPTIONS: dict[str, Any] = {"features": NUMERIC, "max_iter": 4, "random_state": 1, "progress": False, "memory_limit": "64MiB"}


@pytest.fixture(autouse=True)
def in_files(tune: Tune) -> None:
    tune(retained_bytes=0, resident_rows=0, block_rows=64)


@pytest.mark.parametrize("filed", [True, False])
def test_bites_keep_the_rows_of_some_partitions(monkeypatch: pytest.MonkeyPatch, tune: Tune, filed: bool) -> None:
    kept, n_compared = (0, 2), []
    tune(resident_rows=0 if filed else len(FRAME))

    class Compared(BiteStore):
        def __init__(self, rows: TableRows, spec: BuildSpec, n_parts: int, budget: Budget | None, **options: Any) -> None:
            super().__init__(rows, spec, n_parts, budget, **options)
            assert rows.id_ranges.ranges.keys() == set(range(5))
            moved = BiteStore(rows, spec, n_parts, budget, **options)
            assert moved.rows_in_files == (moved.n_rows if filed else 0)
            moved.keep_only(range(5))  # all of them: nothing is written
            moved.keep_only(kept)
            for part in range(n_parts):
                before, after = self.rows_of(part, ()), moved.rows_of(part, ())
                stays = np.flatnonzero(rows.id_ranges.are_of(before["row_ids"], kept))
                assert 0 < len(stays) < len(before["row_ids"])
                np.testing.assert_equal(after, {name: values[..., stays] for name, values in before.items()})
                n_compared.append(len(stays))
            assert moved.n_rows == sum(n_compared)
            moved.close()

    monkeypatch.setattr(session, "BiteStore", Compared)
    data = dd.from_pandas(FRAME[[*NUMERIC, "y", "w"]], npartitions=5)
    dboost.fit(data, "y", sample_weight="w", arcbites=dboost.ArcBites(3, 2), **OPTIONS)
    assert len(n_compared) == 3


@pytest.mark.parametrize("retained", [0, 2**20])
def test_evaluation_sets_keep_the_rows_of_some_partitions(monkeypatch: pytest.MonkeyPatch, tune: Tune, retained: int) -> None:
    tune(retained_bytes=retained)
    opened: list[SessionEvalSets] = []
    add_rows = SessionEvalSets.add

    def add(sets: SessionEvalSets, *arguments: Any, **options: Any) -> None:
        add_rows(sets, *arguments, **options)
        opened.append(sets)

    def halve(now: dboost.Iteration) -> None:
        if now.iteration == 2:
            assert opened[0].in_files() == (0 if retained else len(OTHER))
            opened[0].keep_only("", (0, 2))
            assert opened[0].in_files() == (0 if retained else 160)

    monkeypatch.setattr(SessionEvalSets, "add", add)
    options = OPTIONS | {"eval_metric": "mean_absolute_error"}
    parts = cut(OTHER, [100, 150, 210])
    found = dboost.fit(FRAME, "y", eval_set=parts, callbacks=[halve], **options).history["eval_mean_absolute_error"]
    whole, kept = (
        dboost.fit(FRAME, "y", eval_set=rows, **options).history["eval_mean_absolute_error"]
        for rows in (OTHER, pd.concat([OTHER[:100], OTHER[150:210]]))
    )
    assert [*found] == pytest.approx([*whole[:2], *kept[2:]], rel=1e-12)


def _numbers_and_truth(n: int) -> list[Any]:
    return [
        pd.DataFrame({"c": pd.Series(values, dtype=dtype)}) for values, dtype in (([True, False] * n, bool), ([0, 1] * n, int))
    ]


MODEL = (Feature("c", ("a", "b")),)
TRUTH = (Feature("c", (False, True)),)
#: Tables of two partitions with a column "c" (and perhaps a weight "w"), by name, and how the first reading plans them.
WAYS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "numbers": ([pd.DataFrame({"c": [1.5, np.nan, 3.0]}), pd.DataFrame({"c": [2.0, 5.0, 1.0]})], {}),
    "float32": ([pd.DataFrame({"c": np.array(v, np.float32)}) for v in ([1.5, np.nan], [0.1, 2])], {}),
    "a matrix": ([np.arange(12.0).reshape(6, 2), -np.arange(8.0).reshape(4, 2)], {}),
    "nullable": ([pd.DataFrame({"c": pd.array(v, "Int64")}) for v in ([1, None, 3], [4, 5, 6])], {}),
    "decimals": ([pa.table({"c": pa.array([Decimal(x) for x in v])}) for v in (["0.30", "1.10"], ["2.50", "0.10"])], {}),
    "orders of a dictionary": (
        [pd.DataFrame({"c": pd.Categorical(list(v), list("abc"[::step]))}) for v, step in (("abcb", 1), ("cbba", -1))],
        {},
    ),
    "text": ([pd.DataFrame({"c": list("xyz")}), pd.DataFrame({"c": ["z", None, "new"]})], {}),
    "rows of weight 0": (
        [pd.DataFrame({"c": list("xyz"), "w": [1.0, 0, 1]}), pd.DataFrame({"c": list("zab"), "w": [0.0, 0, 2]})],
        {"weight": True},
    ),
    "unknown categories": ([pd.DataFrame({"c": list("abz")}), pd.DataFrame({"c": list("yxb")})], {"like": MODEL}),
    "only unknown categories": ([pd.DataFrame({"c": list("xyz")}), pd.DataFrame({"c": list("aab")})], {"like": MODEL}),
    "a continued model": (
        [pd.DataFrame({"c": list("abz")}), pd.DataFrame({"c": list("yxb")})],
        {"like": MODEL, "extend_categories": True},
    ),
    "truth values beside integers": (_numbers_and_truth(2), {"categorical_features": ["c"]}),
    "truth values of objects": (
        [pd.DataFrame({"c": pd.Categorical([True, False])}), pd.DataFrame({"c": pd.Categorical([1, 0])})],
        {},
    ),
    "integers where a model has truth values": (_numbers_and_truth(2), {"like": TRUTH}),
    "numbers beyond those of a model": (
        [pd.DataFrame({"c": [3, 7, -2]}), pd.DataFrame({"c": [1.0, np.inf, np.nan]})],
        {"like": (Feature("c", (1, 3)),)},
    ),
}


@pytest.mark.fast_cells(8)
@pytest.mark.parametrize("most_bytes", [None, 16])
@pytest.mark.parametrize("case", WAYS)
def test_a_fingerprint_is_one_of_the_source_whichever_way_the_rows_came(case: str, most_bytes: int | None) -> None:
    """Rows that are read, read again when the categories are known, or moved (also twice, also from either reading)."""
    parts, how = WAYS[case]
    how = dict(how)
    named = not isinstance(parts[0], np.ndarray)
    roles = {"sample_weight": "w"} if how.pop("weight", False) else {}
    names = ("c", "w") if roles else ("c",) if named else ("f0", "f1")
    first_plan = make_read_plan(names, named, roles=roles, **how)

    def reading(plan: ReadPlan) -> PartitionBatch:
        batch = PartitionBatch(plan, 2**20, most_bytes)
        for i in order:
            batch.read(i, (parts[i], {}))
        return batch

    def moving(giver: PartitionBatch, plan: ReadPlan) -> PartitionBatch:
        batch = PartitionBatch(plan, 2**20, most_bytes)
        for i in order:
            for number in count():
                chunk, more = giver.give(i, number)
                batch.add_slice(i, unpack(pack(chunk)), number)
                if not more:
                    break
        return batch

    order = [0, 1]
    first = reading(first_plan)
    expected = first.scan_partitions(order)
    kinds = zip(first_plan.specs, expected.kinds, expected.categories, strict=True)
    features = tuple(
        first_plan.known
        if first_plan.closed and first_plan.known is not None
        else (Feature(spec.name, tuple(dict.fromkeys(levels)) if kind and kind[0] else None) for spec, kind, levels in kinds)
    )
    later_plan = replace(first_plan, known=features, extend_categories=False)
    order = [1, 0]
    again = reading(later_plan)
    ways = [
        again,
        moving(again, later_plan),
        moving(moving(again, later_plan), later_plan),
        moving(reading(first_plan), first_plan),
    ]
    for way in ways:
        assert way.scan_partitions([0, 1]).fingerprints == expected.fingerprints
    tables = [way.table(features, named) for way in (*ways[:3], first)]
    for i in (0, 1):
        for table in tables:
            columns, others = table.chunk(i).columns, tables[0].chunk(i).columns
            for one, other in zip(columns, others, strict=True):
                assert isinstance(one, CategoryColumn) == isinstance(other, CategoryColumn)
                codes = [column.codes if isinstance(column, CategoryColumn) else column for column in (one, other)]
                np.testing.assert_array_equal(*codes)
    changed = PartitionBatch(later_plan, 2**20, most_bytes)
    changed.read(0, (parts[1][: len(parts[0])], {}))
    assert changed.scan_partitions([0]).fingerprints[0] != expected.fingerprints[0]
