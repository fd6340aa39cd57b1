"""64 rows side by side: one question put to all of them in one go.

A compiler turns a plain loop over 64 rows into vector instructions only when it feels like it, and takes seconds to
think about it. `keep_above` and `keep_above_or_missing` write the vector operation down as such (LLVM splits it into
whatever registers the processor has): faster to compile, and sure to be fast. `pick` is a choice that must not become
a jump: which child a row goes to is what no processor can predict.
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
    nothing = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
    single = builder.insert_element(nothing, value, int32(0))
    return builder.shuffle_vector(single, nothing, ir.Constant(ir.VectorType(int32, LANES), [0] * LANES))


def _keep_where(is_right):
    """Code for ``masks[r] &= keep`` in the lanes where `is_right` of ``values[start + r]`` and threshold."""

    def codegen(context, builder, signature, arguments):
        mask_type, _, value_type, start_type, _ = signature.args
        masks, keep, values, start, threshold = arguments
        if start_type.bitwidth < 64:
            start = builder.zext(start, ir.IntType(64))
        first = builder.gep(context.make_array(value_type)(context, builder, values).data, [start])
        element = context.get_value_type(value_type.dtype)
        value = builder.load(_lanes(builder, first, element), align=value_type.dtype.bitwidth // 8)
        where = _lanes(builder, context.make_array(mask_type)(context, builder, masks).data, ir.IntType(32))
        mask = builder.load(where, align=4)
        right = is_right(builder, value, _everywhere(builder, threshold))
        kept = builder.and_(mask, _everywhere(builder, keep))
        builder.store(builder.select(right, kept, mask), where, align=4)
        return context.get_dummy_value()

    return codegen


@intrinsic
def keep_above_or_missing(typingctx, masks, keep, values, start, threshold):
    """``masks[r] &= keep`` in the lanes where ``values[start + r]`` is above the threshold or NaN.

    masks : uint32[LANES]; keep : uint32; values, threshold : of one float type; start : unsigned.
    """
    signature = types.void(masks, keep, values, start, threshold)
    return signature, _keep_where(lambda builder, value, threshold: builder.fcmp_unordered(">", value, threshold))


@intrinsic
def keep_above(typingctx, masks, keep, values, start, threshold):
    """``masks[r] &= keep`` in the lanes where ``values[start + r]`` is above the threshold; arguments as above."""
    signature = types.void(masks, keep, values, start, threshold)
    return signature, _keep_where(lambda builder, value, threshold: builder.fcmp_ordered(">", value, threshold))


@intrinsic
def lowest_bit(typingctx, mask):
    """Position of the lowest set bit of a uint32 (32 when there is none)."""
    signature = types.uint32(types.uint32)

    def codegen(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return signature, codegen


@intrinsic
def pick(typingctx, condition, if_true, if_false):
    """One of two uint32, by a conditional move."""
    signature = types.uint32(types.boolean, types.uint32, types.uint32)

    def codegen(context, builder, signature, arguments):
        picked = builder.select(*arguments)
        picked.set_metadata("unpredictable", builder.module.add_metadata([]))
        return picked

    return signature, codegen
