"""The few machine instructions that Numba has no name for.

* `prefetch` asks for a cache line ahead of its use. Rows of a tree node are scattered over the table; without it the
  histogram kernel waits for memory two thirds of its time.
* `atomic_add`, `atomic_load`, `atomic_store`, `yield_processor` carry the barrier with which a few threads walk through
  one tree together (see `team.py`).
* `bits_to_float32`, `bits_to_float64`, `float64_to_bits` reinterpret bits, for exponential and logarithm (`elementary.py`)
  and for scores (`packed.py`).
"""

from __future__ import annotations

import sys
import threading
import time

import numpy as np
from llvmlite import ir
from numba import types

from dboost.kernels import instruction

#: The system's call to let another thread run.
_YIELD = "SwitchToThread" if sys.platform == "win32" else "sched_yield"
_LOCK = threading.Lock()


def _address(context, builder, array_type, array, index_type, index):
    """Address of ``array[index]`` (one-dimensional view of the data, no bounds check)."""
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


def _add(array, index, value):
    with _LOCK:
        before = array[index]
        array[index] += value
    return before


@instruction(_add)
def atomic_add(typingctx, array, index, value):
    """Add to an int64 array's element; sequentially consistent. Returns the value before."""
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
    """The float32 whose bits are those of an int32."""
    signature = types.float32(types.int32)

    def codegen(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return signature, codegen


@instruction(lambda bits: np.uint64(bits).view(np.float64))
def bits_to_float64(typingctx, bits):
    """The float64 whose bits are those of a uint64."""
    signature = types.float64(types.uint64)

    def codegen(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.DoubleType())

    return signature, codegen


@instruction(lambda value: np.float64(value).view(np.int64))
def float64_to_bits(typingctx, value):
    """The int64 whose bits are those of a float64; of non-negative numbers it orders like they do."""
    signature = types.int64(types.float64)

    def codegen(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(64))

    return signature, codegen
