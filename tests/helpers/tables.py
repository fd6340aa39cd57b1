"""Random tables of bin codes for tests of kernels and growth: layouts of every kind, codes, gradients with signal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from dboost.kernels.histograms import BinLayout
from dboost.rows.shard import BinnedColumns, RowIds, Shard, empty_binned_columns
from dboost.rows.shard_spec import NARROW_BINS, ShardSpec, plan_layout
from dboost.session.encoded_rows import rows_in_memory

#: Numbers of bins around every border: shared columns, one byte, two bytes.
SOME_BINS = [1, 2, 3, 7, 8, 15, 16, 17, 63, 254, 255]
WIDE_BINS = [256, 300, 700]


@dataclass(frozen=True, eq=False)
class CodedTable:
    """codes : int64[n_features, n_rows]."""

    codes: np.ndarray
    layout: BinLayout

    @property
    def n_rows(self) -> int:
        return self.codes.shape[1]

    @property
    def n_codes(self) -> list[int]:
        """Codes of each feature, "missing" included."""
        return (self.layout.n_bins + 1).tolist()

    def stored(self) -> BinnedColumns:
        """The codes as a shard stores them."""
        stored = empty_binned_columns(self.layout, self.n_rows)
        for feature, codes in enumerate(self.codes):
            stored.of(feature)[:] = codes
        return stored

    def shard(
        self,
        gradient: np.ndarray,
        hessian: np.ndarray | None,
        *,
        times: np.ndarray | None = None,
        max_leaves: int = 31,
        n_channels: int = 3,
        rows: slice = slice(None),
    ) -> Shard:
        """Return some of the rows as a shard, with gradients and Hessians already computed."""
        codes = self.stored().part(rows)
        target = np.zeros(codes.n_rows)
        spec = spec_of(
            self.layout,
            constant_hessian=hessian is None,
            max_leaves=max_leaves,
            weighted=times is not None,
            integer_weights=times is not None,
            n_channels=n_channels,
        )
        weight = None if times is None else times[rows].astype(np.float64)
        shard = shard_of(codes, spec, target, weight, target[None].copy(), RowIds(np.array([[rows.start or 0, codes.n_rows]])))
        shard.gradient[:] = gradient[rows]
        if shard.hessian is not None and hessian is not None:
            shard.hessian[:] = hessian[rows]
        return shard


def shard_of(
    codes: BinnedColumns,
    spec: ShardSpec,
    target: np.ndarray,
    weight: np.ndarray | None,
    raw: np.ndarray,
    ids: RowIds | None = None,
) -> Shard:
    """Return rows in memory as a shard whose tiles are filled."""
    fields = {"narrow": codes.narrow, "wide": codes.wide, "target": target, "raw": raw}
    fields |= {} if weight is None else {"weight": weight}
    contiguous = {name: np.ascontiguousarray(array) for name, array in fields.items()}
    rows = rows_in_memory(contiguous, spec, ids)
    return Shard(rows.store.load(), rows.spec, rows.ids)


def spec_of(layout: BinLayout, **changes: Any) -> ShardSpec:
    """Return the specification of shards of a layout; changes : fields by name."""
    fields: dict[str, Any] = {
        "layout": layout, "tree_layout": layout, "max_leaves": 8, "constant_hessian": False, "n_channels": 3,
    }  # fmt: skip
    return ShardSpec(**fields | changes)


def make_table(
    n_bins: list[int], n_rows: int, seed: int = 0, *, categorical: list[bool] | None = None, missing: float = 0.1
) -> CodedTable:
    """Random codes; about every third feature has no missing values."""
    rng = np.random.default_rng(seed)
    codes = np.empty((len(n_bins), n_rows), np.int64)
    for feature, n in enumerate(n_bins):
        codes[feature] = rng.integers(n, size=n_rows)
        if rng.random() < 2 / 3:
            codes[feature, rng.random(n_rows) < missing] = n
    flags = np.array([False] * len(n_bins) if categorical is None else categorical)
    return CodedTable(codes, plan_layout(np.array(n_bins, np.int64), flags))


@st.composite
def tables(
    draw: st.DrawFn, *, max_features: int = 8, max_rows: int = 300, wide: bool | None = None, categorical: bool = True
) -> CodedTable:
    """Draw tables of any layout; `wide` True or False requires or excludes two-byte columns."""
    choices = SOME_BINS + ([] if wide is False else WIDE_BINS)
    n_bins = draw(st.lists(st.sampled_from(choices), min_size=1, max_size=max_features))
    if wide and max(n_bins) <= NARROW_BINS:
        n_bins.append(draw(st.sampled_from(WIDE_BINS)))
    size = len(n_bins)
    flags = draw(st.lists(st.booleans(), min_size=size, max_size=size)) if categorical else [False] * size
    return make_table(
        n_bins,
        draw(st.integers(1, max_rows)),
        draw(st.integers(0, 2**32)),
        categorical=flags,
        missing=draw(st.sampled_from([0.0, 0.1, 0.9])),
    )
