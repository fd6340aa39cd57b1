"""The passes that compile a kernel: Numba's own, without two that kernels do not need, and with one more.

One of the two looks for closures and comprehensions to inline, the other rewrites expressions of whole arrays. Kernels contain
neither, and leaving the two passes out shortens compilation by about a tenth.

The added pass decides at compile time whether an argument, or a field of a record (a `NamedTuple`), is None: Numba itself
prunes the branches of an argument that is None, but neither those of a field nor those of an argument that is not None. So an
optional array costs nothing where it is absent, be it an argument or in a record, and records may hold many.
"""

from __future__ import annotations

import operator
from typing import Any

from numba.core import ir, types
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import FunctionPass, PassManager, register_pass
from numba.core.consts import ConstantInference
from numba.core.ir_utils import get_definition, guard

from dboost.kernels.records import RecordType

_UNNEEDED = {"InlineClosureLikes", "NopythonRewrites"}
_TESTS = (operator.is_, operator.is_not)


@register_pass(mutates_CFG=False, analysis_only=False)
class FoldNoneTests(FunctionPass):
    """Replace ``x is None`` and ``x is not None`` by constants, for arguments and fields of records that are arguments."""

    _name = "dboost_fold_none_tests"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        function = state.func_ir
        is_changed = False
        for block in function.blocks.values():
            for assignment in block.find_insts(ir.Assign):
                test = assignment.value
                if not (isinstance(test, ir.Expr) and test.op == "binop" and test.fn in _TESTS):
                    continue
                left, right = _type_of(state, test.lhs), _type_of(state, test.rhs)
                if right is not types.none or left is None or isinstance(left, types.Optional | types.Omitted):
                    continue
                assignment.value = ir.Const((left is types.none) == (test.fn is operator.is_), assignment.loc)
                definitions = function._definitions[assignment.target.name]
                definitions[definitions.index(test)] = assignment.value
                is_changed = True
        if is_changed:
            function._consts = ConstantInference(function)
        return is_changed


def _type_of(state: Any, value: Any) -> Any:
    """Return the type of an argument, of a field of a record, or of None; None for everything else."""
    definition = guard(get_definition, state.func_ir, value)
    if isinstance(definition, ir.Arg):
        return state.args[definition.index]
    if isinstance(definition, ir.Const):
        return types.none if definition.value is None else None
    if isinstance(definition, ir.Expr) and definition.op == "static_getitem":  # of ``a, b = record.a, record.b``
        return _type_of(state, _item(state, definition))
    if isinstance(definition, ir.Expr) and definition.op == "getattr":
        record = _type_of(state, definition.value)
        if isinstance(record, RecordType):
            return record.type_of(definition.attr)
        fields = record.fields if isinstance(record, types.NamedTuple | types.NamedUniTuple) else ()
        if definition.attr in fields:
            return record[fields.index(definition.attr)]
    return None


def _item(state: Any, getitem: Any) -> Any:
    """Return the variable that an assignment of several values assigns; None for everything else."""
    values = guard(get_definition, state.func_ir, getitem.value)
    if isinstance(values, ir.Expr) and values.op == "exhaust_iter":
        values = guard(get_definition, state.func_ir, values.value)
    return values.items[getitem.index] if isinstance(values, ir.Expr) and values.op == "build_tuple" else None


class KernelCompiler(CompilerBase):
    """For the `pipeline_class` of Numba's decorators."""

    def define_pipelines(self) -> list[Any]:
        kernel_passes = PassManager("kernel")
        is_folded = False
        for compiler_pass, description in DefaultPassBuilder.define_nopython_pipeline(self.state).passes:
            name = compiler_pass.__name__
            if name == "DeadBranchPrune" and not is_folded:
                kernel_passes.add_pass(FoldNoneTests, "find out which arguments and fields are None")
                is_folded = True
            if name not in _UNNEEDED:
                kernel_passes.add_pass(compiler_pass, description)
        kernel_passes.finalize()
        return [kernel_passes]
