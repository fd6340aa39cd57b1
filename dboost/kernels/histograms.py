"""Histograms of gradients and Hessians: the inner loop of boosting.

**Rows.** While a tree grows, a row is one 64-bit record ``gradient (16 bits) | hessian (16) | row number (32)``. The gradient
and the Hessian are integers (see `rows.py`), so sums over rows are exact, and the same in any order.

**Bin codes.** The bin codes of a row lie in *tiles*: 32 one-byte columns of one row are 32 consecutive bytes, read as four
64-bit words. Columns of few bins share a byte as a joint code (`BinLayout`); features of more than 255 bins have a column of
16-bit codes of their own.

Features of few bins need fewer bytes in a shard where none of their values is missing, because the code for "missing" is left
out; so the shards of a table may have different tiles (`shard._closest_layout`), but histograms have the same buckets.

**Buckets.** One addition per row and column does all the work: the packed word ``gradient << high | hessian << low | 1`` is
added to the column's bucket. Before a field can overflow (after `rows` rows, see `Packing`) the packed buckets are *flushed*
into a histogram of float64, which holds integers exactly up to 2**53. With a constant Hessian (or when counts are not needed)
the word has two fields and is flushed every 65,536 rows only.

**Integer weights.** A row whose weight is an integer n is added n times, by one multiplication of its word: the sums equal
those of a table that holds the row n times, to the last bit. (Other weights are multiplied in before rounding, see `rows.py`.)

**Channels.** A node's histogram is ``histogram[channel, bucket]``: channel 0 sums gradients, 1 Hessians, 2 (if present) counts
rows. Buckets are ordered by feature; each feature has `n_bins` of them and one more for missing values.

**Small tables.** As long as the sums over all rows of the table fit in halves of a word, histograms may stay packed. Those of
65,536 rows always fit; those of more rows do unless most gradients are large (`rows.add_sizes`). Packed histograms are stored
as prefix sums over the bins (`accumulate` instead of `unpack`), with counts in words of their own: the search needs prefix
sums, and those of the larger child are the parent's minus the smaller child's, just like the sums themselves. Of categorical
features they are the sums of the codes that occur in the node, with a list of these (`Levels`): a small node has few of many
levels, and nothing but these is added up, subtracted and searched.

There are 264 words between columns, not 256, so that the first buckets of all columns do not fall into the same cache set.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dboost.kernels import inlined, internal
from dboost.kernels.records import record
from dboost.kernels.simd import prefetch, row_span, span

U = np.uint64
I = np.int64  # noqa: E741

#: Packed words from one tile column to the next.
COLUMN_STRIDE = 264
#: One-byte columns in a tile.
TILE_COLUMNS = 32
#: Codes are prefetched this many rows ahead. (16 would take an eighth longer where a node has one in 16 rows or fewer.)
_AHEAD = 32


@record
class BinLayout(NamedTuple):
    """The position of each feature's codes and buckets. Columns: first those in tiles, then the 16-bit ones ("wide")."""

    offset: np.ndarray  # int64[n_features + 1]: first bucket of a feature in the histogram
    n_bins: np.ndarray  # int64[n_features]: bins of values; the next bucket is for missing values
    n_codes: np.ndarray  # int64[n_features]: codes in its column: n_bins + 1, or n_bins if no value is missing
    stride: np.ndarray  # int64[n_features]: the column's code is the sum of code * stride over its features
    first: np.ndarray  # int64[n_columns + 1]: first position of a column's features in `features`
    features: np.ndarray  # int64[n_features]: feature numbers, column by column, in a column by ascending stride
    start: np.ndarray  # int64[n_columns]: first packed word of the column among a thread's packed buckets
    n_tiled: int  # number of columns in tiles; the others are wide
    is_categorical: np.ndarray  # uint8[n_features]


@record
class Packing(NamedTuple):
    """The fields of a packed bucket. With two fields `row` is 0 and the mask of the count is empty."""

    high: int  # shift of the gradient field, 32 or more
    low: int  # shift of the Hessian field
    hessian_mask: int
    row: int  # what a row adds to the count field
    count_mask: int
    rows: int  # number of rows that may be added before a flush
    max_gradient: int  # largest quantised |gradient|
    max_hessian: int  # largest quantised Hessian


@record
class HistogramRows(NamedTuple):
    """What the rows of a shard add to histograms."""

    tiles: np.ndarray  # uint64[n_tiles, n_rows, words]: bin codes in tiles
    wide: np.ndarray  # uint16[n_wide, n_rows]: 16-bit codes
    repeat_count: np.ndarray  # uint8[n_rows]: how often each row counts; empty for once


@record
class Levels(NamedTuple):
    """The codes of categorical features that occur in nodes, by slot; a feature's first buckets have their sums, in order."""

    codes: np.ndarray  # int32[n_slots, n_buckets]: in ascending order from the feature's first bucket on
    n: np.ndarray  # int64[n_slots, n_features]: number of them
    listed: np.ndarray  # int64[1]: the slot whose codes include those of all rows that are added up; -1 for none


@record
class PackedSums(NamedTuple):
    """Histograms that stay packed: prefix sums over each numeric feature's buckets (the sums of the left side after each bin),
    and sums of the codes of categorical ones: of all codes in order until they are listed, then of those in the list."""

    sums: np.ndarray  # int64[n_slots, n_buckets]: words ``G << 32 | H``
    counts: np.ndarray  # int64[n_slots, n_buckets]: numbers of rows; empty where they are not needed
    levels: Levels | None = None  # if features are categorical


@record
class Histograms(NamedTuple):
    """Histograms by slot: one of the two is None."""

    by_channel: np.ndarray | None  # float64[n_slots, n_channels, n_buckets]
    packed: PackedSums | None


#: Gradient and Hessian: 15 bits each.
PAIR = Packing(32, 0, (1 << 32) - 1, 0, 0, 65_536, 32_767, 32_767)
#: Gradient, Hessian and row count: 13 bits each for the first two.
TRIPLE = Packing(38, 13, (1 << 25) - 1, 1, (1 << 13) - 1, 4_096, 8_191, 8_191)
#: As TRIPLE, where a row's Hessian is 1 times an integer weight: then the gradient has its 15 bits.
WEIGHED = Packing(32, 13, (1 << 19) - 1, 1, (1 << 13) - 1, 4_096, 32_767, 1)


def rows_in_32_bits(packing: Packing) -> int:
    """Return of how many rows all sums of a histogram fit 32 bits."""
    # Rows of weight 1 before a flush; with integer weights `packing.rows` is that number divided by the largest weight.
    n_rows = (packing.count_mask + 1) // 2 or PAIR.rows
    return packing.rows * (2**31 // (packing.max_gradient * n_rows))


@inlined
def _packed(record, packing, repeat_count):
    """Return the word that a row adds to its buckets."""
    both = I(record) >> I(32)
    word = ((both >> I(16)) << I(packing.high)) + ((both & I(0xFFFF)) << I(packing.low))
    if repeat_count.size > 0:
        word *= I(repeat_count[record & U(0xFFFFFFFF)])
    return word + I(packing.row)


@inlined
def _add_4(buckets, word, at, value):
    buckets[(word & U(255)) + at] += value
    buckets[((word >> U(8)) & U(255)) + (at + U(264))] += value
    buckets[((word >> U(16)) & U(255)) + (at + U(528))] += value
    buckets[((word >> U(24)) & U(255)) + (at + U(792))] += value


@internal
def add_tile(tile, n_columns, records, repeat_count, buckets, packing):
    """Add records to the packed buckets of one tile.

    tile : uint64[n_rows, words]; n_columns : columns used, at most 32; records : uint64[...]; repeat_count : uint8[n_rows], how
    often each row counts, empty for once; buckets : int64[>= 264 * n_columns rounded up to a multiple of 4]: columns are added
    four at a time, those beyond the last one hold zeros and go to buckets that are never read.

    The nested tests have the same result for every row, so the processor predicts them; a loop is a third slower.
    """
    n = records.size
    fours = (n_columns + 3) >> 2
    words = U(tile.shape[1])
    for i in range(n):
        record = records[i]
        prefetch(tile, (records[i + _AHEAD if i + _AHEAD < n else n - 1] & U(0xFFFFFFFF)) * words)
        value = _packed(record, packing, repeat_count)
        row = record & U(0xFFFFFFFF)
        word = tile[row, U(0)]
        _add_4(buckets, word, U(0), value)
        if fours > 1:
            _add_4(buckets, word >> U(32), U(1056), value)
            if fours > 2:
                word = tile[row, U(1)]
                _add_4(buckets, word, U(2112), value)
                if fours > 3:
                    _add_4(buckets, word >> U(32), U(3168), value)
                    if fours > 4:
                        word = tile[row, U(2)]
                        _add_4(buckets, word, U(4224), value)
                        if fours > 5:
                            _add_4(buckets, word >> U(32), U(5280), value)
                            if fours > 6:
                                word = tile[row, U(3)]
                                _add_4(buckets, word, U(6336), value)
                                if fours > 7:
                                    _add_4(buckets, word >> U(32), U(7392), value)


@internal
def add_wide(codes, records, repeat_count, buckets, packing):
    """Add records to the packed buckets of one 16-bit column (codes : uint16[n_rows]). repeat_count : empty for once."""
    for i in range(records.size):
        record = records[i]
        buckets[U(codes[record & U(0xFFFFFFFF)])] += _packed(record, packing, repeat_count)


@internal
def _split_off_last(words, stride, n, marginal):
    """Sum the packed buckets of a shared column over all features but the last; then sum them over the last, in place.

    words : int64[>= n * stride], of which the first `stride` become the buckets of the features before the last; stride, n :
    the last feature's stride and number of codes; marginal : int64[n], receives its sums.
    """
    for code in range(n):
        total = I(0)
        for k in range(code * stride, (code + 1) * stride):
            total += words[k]
        marginal[code] = total
    for code in range(1, n):
        for k in range(stride):
            words[k] += words[code * stride + k]


@internal
def unpack(words, at, n_bins, packing, histogram, clear):
    """Add a feature's packed sums by code to its buckets of a histogram, or with `clear` write them there.

    words : int64[n_bins or n_bins + 1]; at : the feature's first bucket; n_bins : its number of bins of values; histogram :
    float64[2 or 3, n_buckets].
    """
    n = words.size
    # 32-bit conversions vectorise everywhere, 64-bit ones do not: all fields are cut to 32 bits first.
    shift = np.int32(packing.high - 32)
    low, mask, count_mask = packing.low, packing.hessian_mask, packing.count_mask
    old = 0.0 if clear else 1.0
    gradient, hessian = row_span(histogram, 0, at, at + n), row_span(histogram, 1, at, at + n)
    for b in range(n):
        gradient[b] = gradient[b] * old + np.float64(np.int32(words[b] >> I(32)) >> shift)
    for b in range(n):
        hessian[b] = hessian[b] * old + np.float64(np.int32((words[b] >> low) & mask))
    if histogram.shape[0] == 3:
        count = row_span(histogram, 2, at, at + n)
        for b in range(n):
            count[b] = count[b] * old + np.float64(np.int32(words[b] & count_mask))
    if clear and n == n_bins:
        for channel in range(histogram.shape[0]):
            histogram[channel, at + n] = 0.0


@internal
def accumulate(words, at, n_bins, packing, prefix, slot, clear):
    """Add a feature's packed sums by code to its prefix sums in a slot of `prefix` (PackedSums), or with `clear` write them.

    words, at, n_bins : as in `unpack`.
    """
    n = words.size
    high, low, mask, count_mask = packing.high, packing.low, packing.hessian_mask, packing.count_mask
    target, running = row_span(prefix.sums, slot, at, at + n_bins + 1), I(0)
    if prefix.counts.size == 0:
        for b in range(n):
            running += words[b]
            target[b] = running if clear else target[b] + running
    else:
        counts, rows = row_span(prefix.counts, slot, at, at + n_bins + 1), I(0)
        for b in range(n):
            word = words[b]
            running += ((word >> high) << I(32)) + ((word >> low) & mask)
            rows += word & count_mask
            target[b] = running if clear else target[b] + running
            counts[b] = rows if clear else counts[b] + rows
        if n == n_bins:
            counts[n] = rows if clear else counts[n] + rows
    if n == n_bins:
        target[n] = running if clear else target[n] + running


@internal
def keep_levels(words, at, n_bins, feature, packing, packed, slot, clear):
    """Add a categorical feature's packed sums by code to those in a slot, or with `clear` write them there: those of the codes
    that `Levels.listed` allows, in their order.

    words, at, n_bins : as in `unpack`; packed : PackedSums.
    """
    levels, counts = packed.levels, packed.counts
    parent, n = levels.listed[0], I(n_bins + 1)
    if parent >= 0:
        n = levels.n[parent, feature]
    sums = row_span(packed.sums, slot, at, at + n)
    for i in range(n):
        code = I(i)
        if parent >= 0:
            code = I(levels.codes[parent, at + i])
        word = words[code] if code < words.size else I(0)
        both = ((word >> packing.high) << I(32)) + ((word >> packing.low) & packing.hessian_mask)
        sums[i] = both if clear else sums[i] + both
        if counts.size > 0:
            rows = word & packing.count_mask
            counts[slot, at + i] = rows if clear else counts[slot, at + i] + rows


@internal
def list_levels(packed, at, n_bins, feature, slot):
    """List the codes of a categorical feature that occur in a node of which all buckets are known, and drop the others."""
    sums, counts, n = packed.sums, packed.counts, I(0)
    for code in range(n_bins + 1):
        word = sums[slot, at + code]
        sums[slot, at + n], packed.levels.codes[slot, at + n] = word, code
        if counts.size > 0:
            counts[slot, at + n] = counts[slot, at + code]
        n += I(word != 0)
    packed.levels.n[slot, feature] = n


@internal
def subtract_levels(packed, at, feature, slot, subtracted):
    """Subtract a categorical feature's sums in slot `subtracted` from those in a slot, and list the codes that occur in both.

    Before, both have the sums of the codes of the parent, whose list is in `slot`.
    """
    n = packed.levels.n[slot, feature]
    sums, others = row_span(packed.sums, slot, at, at + n), row_span(packed.sums, subtracted, at, at + n)
    codes = row_span(packed.levels.codes, slot, at, at + n)
    other_codes, counts = row_span(packed.levels.codes, subtracted, at, at + n), packed.counts
    n_left = n_subtracted = I(0)
    for i in range(n):  # without a test of what occurs, which no processor can predict
        code, word = codes[i], others[i]
        rest = sums[i] - word
        others[n_subtracted], other_codes[n_subtracted] = word, code
        sums[n_left], codes[n_left] = rest, code
        if counts.size > 0:
            rows = counts[subtracted, at + i]
            rows_left = counts[slot, at + i] - rows
            counts[subtracted, at + n_subtracted], counts[slot, at + n_left] = rows, rows_left
        n_subtracted += I(word != 0)
        n_left += I(rest != 0)
    packed.levels.n[slot, feature], packed.levels.n[subtracted, feature] = n_left, n_subtracted


@internal
def flush(layout, packing, columns, base, packed, histograms, slot, clear, scratch):
    """Add the packed buckets of some columns (first, last) to the histogram in a slot, or with `clear` write them there.

    base : the first packed word; histograms : Histograms; scratch : int64[n_codes]. A shared column's features are visited
    from the last to the first, and each is summed out of the column's buckets in place, so these must be cleared before they
    are used again.
    """
    for column in range(columns[0], columns[1]):
        for k in range(layout.first[column + 1] - 1, layout.first[column] - 1, -1):
            feature, start = layout.features[k], layout.start[column] - base
            n, n_bins, at = layout.n_codes[feature], layout.n_bins[feature], layout.offset[feature]
            words = span(packed, start, start + n)
            if k > layout.first[column]:
                words = span(scratch, 0, n)
                _split_off_last(span(packed, start, packed.size), layout.stride[feature], n, words)
            if histograms.by_channel is not None:
                unpack(words, at, n_bins, packing, histograms.by_channel[slot], clear)
            if histograms.packed is not None:
                if histograms.packed.levels is not None:
                    if layout.is_categorical[feature] != 0:
                        keep_levels(words, at, n_bins, feature, packing, histograms.packed, slot, clear)
                        continue
                accumulate(words, at, n_bins, packing, histograms.packed, slot, clear)


@internal
def add(layout, columns, histograms, slot, added):
    """Add the histogram in slot `added` to the histogram in a slot, in the buckets of some columns (first, last)."""
    for k in range(layout.first[columns[0]], layout.first[columns[1]]):
        feature = layout.features[k]
        for bucket in range(layout.offset[feature], layout.offset[feature + 1]):
            if histograms.by_channel is not None:
                for channel in range(histograms.by_channel.shape[1]):
                    histograms.by_channel[slot, channel, bucket] += histograms.by_channel[added, channel, bucket]
            if histograms.packed is not None:
                histograms.packed.sums[slot, bucket] += histograms.packed.sums[added, bucket]
                if histograms.packed.counts.size > 0:
                    histograms.packed.counts[slot, bucket] += histograms.packed.counts[added, bucket]


@internal
def subtract(histograms, slot, subtracted, start, stop):
    """Subtract buckets start…stop-1 of the histogram in slot `subtracted` from those of the histogram in a slot."""
    if histograms.by_channel is not None:
        for channel in range(histograms.by_channel.shape[1]):
            subtract_row(histograms.by_channel[slot, channel], histograms.by_channel[subtracted, channel], start, stop)
    if histograms.packed is not None:
        subtract_row(histograms.packed.sums[slot], histograms.packed.sums[subtracted], start, stop)
        if histograms.packed.counts.size > 0:
            subtract_row(histograms.packed.counts[slot], histograms.packed.counts[subtracted], start, stop)


@internal
def subtract_row(values, others, start, stop):
    """Subtract elements start…stop-1 of an array from those of another one."""
    for k in range(U(start), U(stop)):
        values[k] -= others[k]


@internal
def add_records(rows, records, layout, packing, columns, packed, histograms, slot, fill, scratch):
    """Add records to the packed buckets of some columns, flushing into a histogram before a field could overflow.

    rows : HistogramRows; columns : (first, last); packed : int64[...], the columns' packed buckets, the first column's at 0;
    histograms : Histograms, flushed into is that in `slot`; fill : (pending, flushed), the number of rows in the packed buckets
    already, and 0 while nothing has been flushed (the first flush then overwrites the histogram). Return the new pair. The
    remaining sums are left in `packed`.
    """
    tiles, wide_codes, repeat_count = rows.tiles, rows.wide, rows.repeat_count
    first_column, last_column = columns
    pending, flushed = fill
    base = layout.start[first_column]
    n_words = layout.start[last_column] - base
    tiled = last_column if last_column < layout.n_tiled else layout.n_tiled
    at = I(0)
    while at < records.size:
        if pending == packing.rows:
            flush(layout, packing, columns, base, packed, histograms, slot, flushed == 0, scratch)
            flushed = I(1)
            pending = I(0)
            for k in range(n_words):
                packed[k] = 0
        n = records.size - at
        n = n if n < packing.rows - pending else packing.rows - pending
        piece = span(records, at, at + n)
        column = first_column
        while column < tiled:
            tile = column // TILE_COLUMNS
            upper = (tile + 1) * TILE_COLUMNS
            upper = upper if upper < tiled else tiled
            buckets = span(packed, layout.start[column] - base, packed.size)
            add_tile(tiles[tile], upper - column, piece, repeat_count, buckets, packing)
            column = upper
        for wide in range(first_column if first_column > tiled else tiled, last_column):
            buckets = span(packed, layout.start[wide] - base, packed.size)
            add_wide(wide_codes[wide - layout.n_tiled], piece, repeat_count, buckets, packing)
        pending += n
        at += n
    return pending, flushed
