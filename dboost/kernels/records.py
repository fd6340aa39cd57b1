"""Records of arguments: kernels receive the address of a record, not its fields.

Numba passes a `NamedTuple` field by field, an array as seven numbers, and puts it together again in the function that is
called. Records of some sixty arrays then make most of the code of a kernel, and each function that takes them adds to it. A
class with the decorator `record` is passed as one pointer instead: the caller from Python writes the fields to its stack,
where they stay during the call, and code loads those that it names. So a kernel may be divided into functions that share many
arrays without taking longer to compile, or to run. Kernels read records and do not make them.

Loops that store to arrays should read the fields of a record before they begin: LLVM can't know that the arrays are not the
record.
"""

from __future__ import annotations

import hashlib
from typing import Any, TypeVar

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.imputils import impl_ret_borrowed
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    NativeValue,
    infer_getattr,
    lower_getattr_generic,
    models,
    register_model,
    typeof_impl,
    unbox,
)

Record = TypeVar("Record", bound=tuple[Any, ...])


class RecordType(types.Type):
    """The type of a record in kernels.

    Parameters
    ----------
    instance_class : type
        A `NamedTuple`.
    field_types : tuple of numba.types.Type
    """

    def __init__(self, instance_class: Any, field_types: tuple[Any, ...]) -> None:
        self.instance_class, self.field_types = instance_class, field_types
        # The name is part of the symbols of all functions that take the record: in full it would be most of their code.
        content = instance_class.__module__, instance_class.__qualname__, *map(str, field_types)
        digest = hashlib.sha256(repr(content).encode()).hexdigest()
        super().__init__(f"{instance_class.__name__}_{digest[:16]}")

    def type_of(self, field: str) -> Any:
        """Return the type of a field; None if there is none of this name."""
        names = self.instance_class._fields
        return self.field_types[names.index(field)] if field in names else None


def record(record_class: type[Record]) -> type[Record]:
    """Decorate a `NamedTuple` that kernels take as an argument, or as a field of another record."""

    @typeof_impl.register(record_class)
    def type_of_record(value: Any, context: Any) -> Any:
        field_types = tuple(typeof_impl(field, context) for field in value)
        return None if None in field_types else RecordType(record_class, field_types)

    return record_class


@register_model(RecordType)
class _RecordModel(models.PrimitiveModel):
    """A pointer to the fields."""

    def __init__(self, manager: Any, record_type: RecordType) -> None:
        fields = ir.LiteralStructType([manager[kind].get_data_type() for kind in record_type.field_types])
        super().__init__(manager, record_type, fields.as_pointer())


@infer_getattr
class _Fields(AttributeTemplate):
    key = RecordType

    def generic_resolve(self, record_type: RecordType, field: str) -> Any:  # type: ignore[override]
        return record_type.type_of(field)


@lower_getattr_generic(RecordType)
def _load_field(context: Any, builder: Any, record_type: RecordType, pointer: Any, field: str) -> Any:
    position = record_type.instance_class._fields.index(field)
    kind = record_type.field_types[position]
    value = context.data_model_manager[kind].load_from_data_pointer(builder, _address(builder, pointer, position))
    return impl_ret_borrowed(context, builder, kind, value)


@unbox(RecordType)
def _unbox_record(record_type: RecordType, value: Any, c: Any) -> Any:
    """Write the fields to the stack."""
    manager, builder = c.context.data_model_manager, c.builder
    pointer = cgutils.alloca_once(builder, manager[record_type].get_value_type().pointee)
    is_error = cgutils.false_bit
    for position, kind in enumerate(record_type.field_types):
        field, address = c.pyapi.tuple_getitem(value, position), _address(builder, pointer, position)
        if isinstance(kind, types.Array):
            failed = builder.call(_array_unboxer(c, kind), [field, address])
        else:
            native = c.unbox(kind, field)
            builder.store(manager[kind].as_data(builder, native.value), address)
            failed = native.is_error
        is_error = builder.or_(is_error, failed)
    return NativeValue(pointer, is_error=is_error)


def _array_unboxer(c: Any, kind: Any) -> Any:
    """Return the function that writes an array of a type to an address, and returns whether that failed.

    It is made once for each type of array in a kernel. The same code for each of sixty arrays would be a third of a kernel.
    """
    manager, module, name = c.context.data_model_manager, c.builder.module, f"unbox {kind}"
    if name in module.globals:
        return module.globals[name]
    address_type = manager[kind].get_data_type().as_pointer()
    function = ir.Function(module, ir.FunctionType(ir.IntType(1), [c.pyapi.pyobj, address_type]), name)
    function.linkage = "internal"
    builder = ir.IRBuilder(function.append_basic_block())
    native = c.context.get_python_api(builder).to_native_value(kind, function.args[0])
    builder.store(manager[kind].as_data(builder, native.value), function.args[1])
    builder.ret(native.is_error)
    return function


def _address(builder: Any, pointer: Any, position: int) -> Any:
    return builder.gep(pointer, [ir.IntType(32)(0), ir.IntType(32)(position)], inbounds=True)
