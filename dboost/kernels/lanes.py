"""64 rows side by side: one question put to all of them at once.

A compiler turns the plain loop over 64 rows into vector instructions only when it feels like it, and takes seconds to
think about it. These intrinsics write the vector operation down as such (LLVM splits it into whatever registers the
processor has), which is both faster to compile and sure to be fast.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

#: Rows that are handled side by side.
LANES = 64


def _lanes(builder, pointer, element):
    """Pointer to one element, seen as a pointer to LANES of them."""
    return builder.bitcast(pointer, ir.VectorType(element, LANES).as_pointer())


def _everywhere(builder, value):
    """A vector that holds the same value in all lanes."""
    int32 = ir.IntType(32)
    vector = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
    single = builder.insert_element(vector, value, int32(0))
    return builder.shuffle_vector(single, vector, ir.Constant(ir.VectorType(int32, LANES), [0] * LANES))


def _keep_right(name, doc, is_right):
    def typing(typingctx, masks, keep, values, start, threshold):
        signature = types.void(masks, keep, values, start, threshold)

        def codegen(context, builder, signature, arguments):
            mask_type, _, value_type, start_type, _ = signature.args
            masks, keep, values, start, threshold = arguments
            if start_type.bitwidth < 64:
                start = builder.sext(start, ir.IntType(64))
            element = context.get_value_type(value_type.dtype)
            first = builder.gep(context.make_array(value_type)(context, builder, values).data, [start])
            x = builder.load(_lanes(builder, first, element), align=value_type.dtype.bitwidth // 8)
            where = _lanes(builder, context.make_array(mask_type)(context, builder, masks).data, ir.IntType(32))
            mask = builder.load(where, align=4)
            right = is_right(builder, x, _everywhere(builder, threshold))
            kept = builder.select(right, builder.and_(mask, _everywhere(builder, keep)), mask)
            builder.store(kept, where, align=4)
            return context.get_dummy_value()

        return signature, codegen

    typing.__name__ = typing.__qualname__ = name
    typing.__doc__ = doc
    return intrinsic(typing)


keep_above_or_missing = _keep_right(
    "keep_above_or_missing",
    "``masks[r] &= keep`` in the lanes where ``values[start + r]`` is above the threshold or NaN.",
    lambda builder, x, threshold: builder.fcmp_unordered(">", x, threshold),
)

keep_above = _keep_right(
    "keep_above",
    "``masks[r] &= keep`` in the lanes where ``values[start + r]`` is above the threshold.",
    lambda builder, x, threshold: builder.fcmp_ordered(">", x, threshold),
)


@intrinsic
def lowest_bit(typingctx, mask):
    """Position of the lowest set bit of a uint32 (32 when there is none)."""
    signature = types.uint32(types.uint32)

    def codegen(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return signature, codegen
