"""Binned data seen by one fit: targets in the terms of its loss, and rows as its engine wants them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dboost.growth.frontier import ANY_ORDER
from dboost.kernels.histograms import Layout
from dboost.model.ensemble import Ensemble
from dboost.model.flat import FlatEnsemble, Range
from dboost.shard.blocks import Blocks, Traits, Writer
from dboost.shard.shard import Shard, empty_codes
from dboost.shard.writing import codes_of
from dboost.training.binned import BinnedData
from dboost.training.boost import Prepared
from dboost.training.portrait import Portrait
from dboost.training.replay import add_block
from dboost.training.target import Target, check_range, unknown_class


class Answers:
    """Targets, weights and offsets of binned data, block by block, for `start_of` and those like it.

    continues : whether a model of other data is continued; then its scores take the place of the offsets, and a class that it
    does not know is an error. missed : a model and those of its iterations (first, last) that no scores in the files hold yet;
    these are trees of the very bins, for a fit that resumes has grown them.
    """

    def __init__(
        self, data: BinnedData, target: Target, *, continues: bool = False, missed: tuple[Ensemble, Range] | None = None
    ) -> None:
        self.data, self._target, self._continues, self._missed = data, target, continues, missed
        self._code_of: np.ndarray | None = None
        if target.classes is not None and data.levels is not None:
            known = {level: code for code, level in enumerate(target.classes)}
            self._code_of = np.array([known.get(level, -1) for level in data.levels], np.float64)

    def ask(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """``function(y, weight, offset, *arguments)`` of every block."""
        offsets = ("begun", "start") if self._continues else ("offset",)
        return [
            function(
                self.encode(rows["target"], block),
                rows.get("weight"),
                next((rows[name] for name in offsets if name in rows), None),
                *arguments,
            )
            for block, rows in self.data.blocks_of_rows()
        ]

    def encode(self, values: np.ndarray, block: int) -> np.ndarray:
        """Targets in the terms of the loss: float64[n]."""
        classes = self._target.classes
        if self._code_of is not None:
            codes = self._code_of[values.astype(np.int64)]
            if (codes < 0).any():
                assert self.data.levels is not None
                raise unknown_class(self.data.levels[int(values[np.argmax(codes < 0)])])
            return codes
        if classes is not None:
            known = np.array(classes, np.float64)
            at = np.minimum(np.searchsorted(known, values), len(known) - 1)
            if (known[at] != values).any():
                raise unknown_class(float(values[np.argmax(known[at] != values)]))
            return at.astype(np.float64)
        first = block * self.data.rows.block_rows
        check_range(self._target.loss, values, lambda row: f"row {first + row} of those of positive weight")
        return values

    @property
    def portrait(self) -> Portrait | None:
        """The portrait of the rows, with targets in the terms of the loss."""
        drawn = self.data.portrait
        return None if drawn is None else Portrait(drawn.values, self.encode(drawn.target, 0))

    def starting(self, prepared: Prepared) -> Iterator[dict[str, np.ndarray]]:
        """Block by block what training begins with: target, weight (if weighted) and raw scores."""
        flat: FlatEnsemble | None = None
        for block, rows in self.data.blocks_of_rows():
            n = len(rows["target"])
            if "start" in rows:
                raw = np.array(rows["start"])
            else:
                raw = np.repeat(prepared.baseline[:, None], n, axis=1)
                raw += rows.get("offset", 0.0)
                raw = raw[0] if len(raw) == 1 else raw
            if self._missed is not None:
                model, iterations = self._missed
                flat = FlatEnsemble(model) if flat is None else flat
                matrix = self._values(block, prepared.layout)
                add_block(np.atleast_2d(raw), flat, matrix, iterations, 1)
            found = {"target": self.encode(rows["target"], block), "raw": raw}
            if prepared.weighted:
                found["weight"] = rows["weight"]
            yield found

    def _values(self, block: int, layout: Layout) -> np.ndarray:
        """Of each row a value of each of its bins: float64[n, n_features]. Trees of these bins cannot tell it from its own.

        Bin b ends with edge b, so that is one; any number above the last edge is one of the last bin.
        """
        data = self.data
        n = data.codes.rows_of(block)
        buffer, codes = data.codes.buffer(), empty_codes(layout, n)
        data.codes.read(block, buffer)
        views = data.codes.views(buffer, block)
        codes_of(views["tiles"], views.get("wide"), layout, codes)
        values = np.empty((n, len(data.binning.edges)))
        for j, edges in enumerate(data.binning.edges):
            n_bins = int(data.binning.n_bins[j])
            if edges is None:
                of_code = np.arange(n_bins, dtype=np.float64)
            else:
                of_code = np.append(edges, np.nextafter(edges[-1], np.inf) if len(edges) else 0.0)
            values[:, j] = np.append(of_code, np.nan)[codes.of(j)]
        return values


def traits_of(prepared: Prepared) -> Traits:
    """What the shards of a fit have in common."""
    return Traits(
        layout=prepared.layout,
        n_outputs=len(prepared.baseline),
        weighted=prepared.weighted,
        whole_weights=prepared.heaviest is not None,
        constant_hessian=prepared.constant_hessian,
        by_weight=prepared.by_weight,
        max_leaves=prepared.rule.max_leaves,
        n_planes=prepared.n_planes,
        coarse=prepared.start.loss_unit,
        opens_more=prepared.rule.order != ANY_ORDER,
    )


def blocks_around(answers: Answers, prepared: Prepared, folder: Path) -> Blocks:
    """The files of a fit that streams the codes where they are; its own ones go to a folder that is there."""
    traits = traits_of(prepared)
    blocks = Blocks.around(folder, "fit-", traits, answers.data.codes)
    writer = Writer((blocks.rows, blocks.state))
    for rows in answers.starting(prepared):
        writer.append(len(rows["target"]), rows | blocks.constants(rows.get("weight"), rows["raw"].shape))
    writer.finish()
    return blocks


def shard_of(answers: Answers, prepared: Prepared) -> Shard:
    """All rows in memory."""
    data, layout = answers.data, prepared.layout
    n, n_outputs = data.n_rows, len(prepared.baseline)
    y, raw = np.empty(n), np.empty(n if n_outputs == 1 else (n_outputs, n))
    weight = np.empty(n) if prepared.weighted else None
    at = 0
    for rows in answers.starting(prepared):
        here = slice(at, at + len(rows["target"]))
        y[here], raw[..., here] = rows["target"], rows["raw"]
        if weight is not None:
            weight[here] = rows["weight"]
        at = here.stop
    codes = empty_codes(layout, n)
    shard = Shard(
        codes,
        layout,
        y,
        weight,
        raw,
        constant_hessian=prepared.constant_hessian,
        max_leaves=prepared.rule.max_leaves,
        whole_weights=prepared.heaviest is not None,
        by_weight=prepared.by_weight,
    )
    buffer = data.codes.buffer()
    for block in range(data.codes.n_blocks):
        data.codes.read(block, buffer)
        views = data.codes.views(buffer, block)
        here = slice(block * data.codes.block_rows, block * data.codes.block_rows + data.codes.rows_of(block))
        shard.tiles[:, here] = views["tiles"]
        codes_of(views["tiles"], views.get("wide"), layout, codes.part(here))
    return shard
