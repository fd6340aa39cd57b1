"""Encoded rows of several sessions become one shard: those of the fields side by side, in whatever memory they are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dboost.cluster.transport.line import pieces_of, unpacked
from dboost.rows.shard import Shard, compacted
from dboost.session.encoded_rows import EncodedRows, joined_rows
from tests.helpers.examples import examples
from tests.helpers.tables import make_table, spec_of

#: Types of encoded targets: some sessions may have values that need more bytes.
TARGETS = [np.array([0.0, 1.0, 200.0]), np.array([0.5, -1.0]), np.array([1 / 3, 1e300])]
BASELINE = np.array([0.25])


def spec(n_bins: list[int]) -> Any:
    shard = spec_of(make_table(n_bins, 1, missing=0.0).layout, compacts_target=True)
    return SimpleNamespace(shard_spec=shard, baseline=BASELINE, in_unit=lambda values: values / 4)


def rows_of(n_bins: list[int], n: int, seed: int, room: int, kind: int, with_raw: bool) -> EncodedRows:
    """Return n rows whose codes have room for more."""
    rng = np.random.default_rng(seed)
    codes = make_table(n_bins, n, seed=seed, missing=0.0).stored()
    fields = {"target": compacted(rng.choice(TARGETS[kind], n))}
    for name, values in (("narrow", codes.narrow), ("wide", codes.wide)):
        fields[name] = np.full((len(values), max(room, n)), 99, values.dtype)
        fields[name][:, :n] = values
    if with_raw:
        fields["raw"] = rng.normal(size=(1, n))
    return EncodedRows(fields, np.array([[1000 * seed, n]]))


@examples(80)
@given(
    n_bins=st.sampled_from([[5, 7], [3, 300], [300]]),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    roomy=st.none() | st.integers(0, 3),
    surplus=st.sampled_from([0, 0, 7]),
    kinds=st.lists(st.integers(0, 2), min_size=4, max_size=4),
    with_raw=st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_rows_side_by_side(
    n_bins: list[int], sizes: list[int], roomy: int | None, surplus: int, kinds: list[int], with_raw: list[bool]
) -> None:
    """One part may have room for all rows, or for more than there are."""
    made = [
        rows_of(n_bins, n, k, sum(sizes) + surplus if k == roomy else 0, kinds[k], with_raw[k]) for k, n in enumerate(sizes)
    ]
    alone = [part.alone() for part in made]
    scores = [part.fields.get("raw", np.full((1, part.n_rows), BASELINE[0] / 4)).copy() for part in alone]
    expected = {
        start + row: (
            part.fields["narrow"][:, row].tolist(),
            part.fields["wide"][:, row].tolist(),
            float(part.fields["target"][row]),
            float(raw[0, row]),
        )
        for part, raw in zip(alone, scores, strict=True)
        for start in [int(part.ids[0, 0])]
        for row in range(part.n_rows)
    }
    own = made[roomy].fields["narrow"] if roomy is not None and roomy < len(made) and not surplus else None
    encoded = joined_rows(made, spec(n_bins), 1)
    shard = Shard(encoded.store.load(), encoded.spec, encoded.ids)
    codes = shard.codes
    found = {
        int(row_id): (
            codes.narrow[:, k].tolist(),
            codes.wide[:, k].tolist(),
            float(shard.fields["target"][k]),
            float(shard.raw[0, k]),
        )
        for k, row_id in enumerate(shard.row_ids(0, shard.n_rows))
    }
    assert found == expected
    if own is not None:
        assert np.shares_memory(codes.narrow, own) or not own.size, "rows that have room for all are not copied"
    whole = compacted(np.array([target for *_, target, _ in expected.values()]))
    assert shard.fields["target"].dtype == whole.dtype, "as if one session had encoded all rows"


def test_rows_are_sent_without_room_and_used_where_they_are_received() -> None:
    part = rows_of([5, 7], 4, 1, 50, 0, with_raw=False)
    content, *buffers = pieces_of([part.alone()])
    assert len(content) + sum(map(len, buffers)) < 1000
    assert sum(map(len, buffers)) == 4 + 16, "targets and ids; codes beside room for others are pickled"
    part = rows_of([5, 7], 4, 1, 0, 0, with_raw=False)
    pieces = pieces_of([part.alone()])
    received = unpacked([pieces[0], *(memoryview(bytearray(piece)) for piece in pieces[1:])])
    narrow = received[0].fields["narrow"]
    assert sum(map(len, pieces[1:])) == 3 * 4 + 16
    assert np.shares_memory(joined_rows(received, spec([5, 7]), 1).store.load()["narrow"], narrow)
