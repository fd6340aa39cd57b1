"""Machine instructions and vector operations that Numba does not offer.

* `prefetch` requests a cache line ahead of its use. The rows of a tree node are scattered over the table; without prefetching
  the histogram kernel waits for memory two thirds of its time.
* `atomic_add`, `atomic_load`, `yield_processor` are the parts of the barrier at which the threads of a team meet (see
  `barrier`).
* `span` and `row_span` are slices without Numba's tests of their bounds, which are nine tenths of the code of a slice.
* `bits_to_float32`, `bits_to_float64`, `float64_to_bits` reinterpret bits, for exponential and logarithm (`exp_log.py`) and
  for scores (`splits.py`).
* `keep_where_left`, `note_leaves` and `pick` process 64 rows side by side, for prediction (`predict.py`).

A compiler does not reliably turn a plain loop over 64 rows into vector instructions, and takes seconds to try.
`keep_where_left` emits the vector operations directly (LLVM splits them into the registers that the processor has): it compiles
faster and is always vectorised. It also holds the rows' masks in registers from one condition to the next; loading and storing
them would take longer than the comparison. `pick` is a selection that must not become a jump: no processor can predict to which
child a row goes.

**Barrier.** All threads of a team run the same kernel (each on its own stripes of rows, then on its own features) and wait for
each other at barriers. A waiting thread spins for some microseconds, then yields the processor between tests. A thread that
fails sets the abort flag, so that no other thread waits for ever.

``control[0]`` counts arrivals, ``control[8]`` is the abort flag (a cache line apart).
"""

from __future__ import annotations

import sys
import threading
import time

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed

from dboost.kernels import instruction, internal

#: System call that lets another thread run.
_YIELD = "SwitchToThread" if sys.platform == "win32" else "sched_yield"
_LOCK = threading.Lock()


def _address(context, builder, array_type, array, index_type, index):
    """Return the address of ``array[index]`` (one-dimensional view of the data, no bounds check)."""
    if index_type.bitwidth < 64:
        index = builder.sext(index, ir.IntType(64))
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [index])


@instruction(lambda array, index: None)
def prefetch(typingctx, array, index):
    """Fetch the cache line that holds ``array.ravel()[index]``."""
    signature = types.void(array, index)

    def codegen(context, builder, signature, arguments):
        pointer = _address(context, builder, signature.args[0], arguments[0], signature.args[1], arguments[1])
        pointer = builder.bitcast(pointer, ir.IntType(8).as_pointer())
        int32 = ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [pointer.type, int32, int32, int32])
        name = "llvm.prefetch.p0"
        function = builder.module.globals.get(name) or ir.Function(builder.module, function_type, name)
        read, keep_in_all_caches, data = int32(0), int32(3), int32(1)
        builder.call(function, [pointer, read, keep_in_all_caches, data])
        return context.get_dummy_value()

    return signature, codegen


def _span(context, builder, signature, arguments):
    """Return elements first…last-1 of an array, or of a row. arguments : array, row (if there are rows), first, last."""
    (kind, *_), (array, *position, last) = signature.args, arguments
    source = context.make_array(kind)(context, builder, array)
    shape, strides = (cgutils.unpack_tuple(builder, numbers, kind.ndim) for numbers in (source.shape, source.strides))
    part = context.make_array(signature.return_type)(context, builder)
    part.meminfo, part.parent, part.itemsize = source.meminfo, source.parent, source.itemsize
    part.data = cgutils.get_item_pointer2(context, builder, source.data, shape, strides, kind.layout, position)
    part.nitems = builder.sub(last, position[-1])
    part.shape, part.strides = (cgutils.pack_array(builder, [number]) for number in (part.nitems, strides[-1]))
    return impl_ret_borrowed(context, builder, signature.return_type, part._getvalue())


@instruction(lambda array, first, last: array[first:last])
def span(typingctx, array, first, last):
    """Return ``array[first:last]`` of an array of one axis, 0 <= first <= last <= size."""
    return array(array, types.int64, types.int64), _span


@instruction(lambda matrix, row, first, last: matrix[row, first:last])
def row_span(typingctx, matrix, row, first, last):
    """Return ``matrix[row, first:last]`` of an array of two axes, 0 <= row < n_rows, 0 <= first <= last <= size."""
    layout = "C" if matrix.layout == "C" else "A"
    return matrix.copy(ndim=1, layout=layout)(matrix, types.int64, types.int64, types.int64), _span


def _add(array, index, value):
    with _LOCK:
        before = array[index]
        array[index] += value
    return before


@instruction(_add)
def atomic_add(typingctx, array, index, value):
    """Add to an int64 array's element, sequentially consistent. Return the value before."""
    signature = types.int64(array, index, types.int64)

    def codegen(context, builder, signature, arguments):
        pointer = _address(context, builder, signature.args[0], arguments[0], signature.args[1], arguments[1])
        return builder.atomic_rmw("add", pointer, arguments[2], "seq_cst")

    return signature, codegen


@instruction(lambda array, index: array[index])
def atomic_load(typingctx, array, index):
    """Read an int64 array's element with acquire order."""
    signature = types.int64(array, index)

    def codegen(context, builder, signature, arguments):
        pointer = _address(context, builder, signature.args[0], arguments[0], signature.args[1], arguments[1])
        return builder.load_atomic(pointer, "acquire", 8)

    return signature, codegen


@instruction(lambda: time.sleep(0))
def yield_processor(typingctx):
    """Let another thread of this machine run."""
    signature = types.int32()

    def codegen(context, builder, signature, arguments):
        module = builder.module
        function = module.globals.get(_YIELD) or ir.Function(module, ir.FunctionType(ir.IntType(32), []), _YIELD)
        return builder.call(function, [])

    return signature, codegen


@instruction(lambda bits: np.int32(bits).view(np.float32))
def bits_to_float32(typingctx, bits):
    """Return the float32 whose bits are those of an int32."""
    signature = types.float32(types.int32)

    def codegen(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return signature, codegen


@instruction(lambda bits: np.uint64(bits).view(np.float64))
def bits_to_float64(typingctx, bits):
    """Return the float64 whose bits are those of a uint64."""
    signature = types.float64(types.uint64)

    def codegen(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.DoubleType())

    return signature, codegen


@instruction(lambda value: np.float64(value).view(np.int64))
def float64_to_bits(typingctx, value):
    """Return the int64 whose bits are those of a float64; non-negative numbers order like these integers."""
    signature = types.int64(types.float64)

    def codegen(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(64))

    return signature, codegen


#: Rows that are processed side by side.
LANES = 64


def _lanes(builder, pointer, element):
    """Return a pointer to LANES elements from a pointer to the first one."""
    return builder.bitcast(pointer, ir.VectorType(element, LANES).as_pointer())


def _broadcast(builder, value):
    """Return a vector that holds the same value in all lanes."""
    int32 = ir.IntType(32)
    nothing = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
    single = builder.insert_element(nothing, value, int32(0))
    return builder.shuffle_vector(single, nothing, ir.Constant(ir.VectorType(int32, LANES), [0] * LANES))


class _ConditionLoop:
    """Emits loops that apply the conditions of one array to the lanes of a block, one condition after the other."""

    def __init__(self, context, builder, signature, arguments):
        conditions, values = signature.args[0], signature.args[4]
        self._context, self._builder = context, builder
        self._record, self._value = conditions.dtype, values.dtype
        self._first_condition = context.make_array(conditions)(context, builder, arguments[0]).data
        self._first_value = context.make_array(values)(context, builder, arguments[4]).data

    def _field(self, at, name):
        """Load a field of the condition whose first byte is at `at`."""
        kind = self._context.get_value_type(self._record.typeof(name))
        address = self._builder.gep(at, [ir.IntType(64)(self._record.offset(name))])
        return self._builder.load(self._builder.bitcast(address, kind.as_pointer()))

    def apply(self, masks, first, last, is_right):
        """Return the masks after conditions first…last-1: where a lane's value `is_right`, only the bits of `keep` stay."""
        builder, int64 = self._builder, ir.IntType(64)
        before = builder.block
        head, body, after = (builder.append_basic_block(f"conditions.{name}") for name in ("head", "body", "after"))
        builder.branch(head)
        builder.position_at_end(head)
        i, kept = builder.phi(int64), builder.phi(masks.type)
        i.add_incoming(first, before)
        kept.add_incoming(masks, before)
        builder.cbranch(builder.icmp_unsigned("<", i, last), body, after)

        builder.position_at_end(body)
        bytes_ = builder.bitcast(self._first_condition, ir.IntType(8).as_pointer())
        at = builder.gep(bytes_, [builder.mul(i, int64(self._record.size))])
        value = builder.gep(self._first_value, [builder.zext(self._field(at, "start"), int64)])
        element = self._context.get_value_type(self._value)
        values = builder.load(_lanes(builder, value, element), align=self._value.bitwidth // 8)
        right = is_right(values, _broadcast(builder, self._field(at, "threshold")))
        dropped = _broadcast(builder, builder.not_(self._field(at, "keep")))
        dropped = builder.and_(builder.sext(right, masks.type), dropped)
        i.add_incoming(builder.add(i, int64(1)), body)
        kept.add_incoming(builder.and_(kept, builder.not_(dropped)), body)
        builder.branch(head)

        builder.position_at_end(after)
        return kept


def _keep_where_left(conditions, begin, missing_left, end, values, masks):
    masks[:] = 0xFFFFFFFF
    for i in range(begin, end):
        condition = conditions[i]
        value = values[condition.start : condition.start + LANES]
        right = ~(value <= condition.threshold) if i < missing_left else value > condition.threshold
        masks[right] &= condition.keep


@instruction(_keep_where_left)
def keep_where_left(typingctx, conditions, begin, missing_left, end, values, masks):
    """Set ``masks[r]`` to the bits that all conditions leave set in lane r.

    A condition compares ``values[start + r]`` with its threshold. Where the value is above (or NaN, for conditions begin …
    missing_left-1) it leaves only the bits of `keep` set.

    conditions : see `predict.condition`; begin, missing_left, end : unsigned; values : of the thresholds' type;
    masks : uint32[LANES].
    """
    signature = types.void(conditions, types.uint64, types.uint64, types.uint64, values, masks)

    def codegen(context, builder, signature, arguments):
        begin, missing_left, end = arguments[1:4]
        loop = _ConditionLoop(context, builder, signature, arguments)
        all_set = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0xFFFFFFFF] * LANES)
        kept = loop.apply(all_set, begin, missing_left, lambda value, top: builder.fcmp_unordered(">", value, top))
        kept = loop.apply(kept, missing_left, end, lambda value, top: builder.fcmp_ordered(">", value, top))
        where = context.make_array(signature.args[5])(context, builder, arguments[5]).data
        builder.store(kept, _lanes(builder, where, ir.IntType(32)), align=4)
        return context.get_dummy_value()

    return signature, codegen


def _note_leaves(masks, first_leaf, leaf):
    is_reached = masks != 0
    lowest = masks[is_reached] & -masks[is_reached]
    leaf[is_reached] = first_leaf + np.log2(lowest).astype(np.uint32)


@instruction(_note_leaves)
def note_leaves(typingctx, masks, first_leaf, leaf):
    """Set ``leaf[r] = first_leaf + (position of the lowest bit of masks[r])`` in the lanes where any bit is set.

    masks, leaf : uint32[LANES]; first_leaf : uint32.
    """
    signature = types.void(masks, types.uint32, leaf)

    def codegen(context, builder, signature, arguments):
        where, at = (
            _lanes(builder, context.make_array(kind)(context, builder, array).data, ir.IntType(32))
            for kind, array in ((masks, arguments[0]), (leaf, arguments[2]))
        )
        mask, before = builder.load(where, align=4), builder.load(at, align=4)
        name, flag = f"llvm.cttz.v{LANES}i32", ir.IntType(1)
        function_type = ir.FunctionType(mask.type, [mask.type, flag])
        function = builder.module.globals.get(name) or ir.Function(builder.module, function_type, name)
        lowest = builder.call(function, [mask, flag(0)])
        is_reached = builder.icmp_unsigned("!=", mask, ir.Constant(mask.type, [0] * LANES))
        builder.store(builder.select(is_reached, builder.add(lowest, _broadcast(builder, arguments[1])), before), at, align=4)
        return context.get_dummy_value()

    return signature, codegen


@instruction(lambda condition, if_true, if_false: if_true if condition else if_false)
def pick(typingctx, condition, if_true, if_false):
    """Return one of two uint32, by a conditional move."""
    signature = types.uint32(types.boolean, types.uint32, types.uint32)

    def codegen(context, builder, signature, arguments):
        picked = builder.select(*arguments)
        picked.set_metadata("unpredictable", builder.module.add_metadata([]))
        return picked

    return signature, codegen


#: A waiting thread looks this often (about 50 µs) before it yields its processor. A process of low priority that wants the
#: processor keeps it for milliseconds then: with one such process on each, and 2,000 looks, trees would take a quarter longer.
#: With 200,000 looks two fits on the same processors would take twice as long.
_MOST_LOOKS = 20_000
#: Length of the int64 control array.
CONTROL_SIZE = 16
ABORT = 8


@internal
def barrier(control, n_threads, epoch):
    """Wait for the other threads. Return the next epoch, or -1 when the team was aborted."""
    if n_threads == 1:
        return epoch if atomic_load(control, ABORT) == 0 else np.int64(-1)
    epoch += n_threads
    atomic_add(control, 0, np.int64(1))
    looks = np.int64(0)
    while atomic_load(control, 0) < epoch:
        if atomic_load(control, ABORT) != 0:
            return np.int64(-1)
        looks += 1
        if looks > _MOST_LOOKS:
            yield_processor()
    return epoch
