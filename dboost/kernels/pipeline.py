"""How kernels are compiled: Numba's way, without what they do not need.

Numba compiles a function by passing it through a list of steps, from bytecode through types to LLVM, and every step costs a
newcomer time. Five things are left out here, by the means that Numba has for compilers of one's own:

* Steps for what no kernel contains: closures, list comprehensions, `with`, `literal_unroll`, sums and products of whole arrays
  (kernels have loops).
* A kernel that only other kernels call is a *part*. LLVM optimises it again in each of its callers, and makes machine code
  of it there, so neither is done for the part alone. Its cache holds it as LLVM's bitcode, for callers to come. (Machine code
  made of a part alone would be worse than lost time: it has calls where callers have pasted code, and the linker takes the
  first function of a name that it meets. All that is called from a caller compiled later would be half as fast.)
* What an operation makes of its operands' types is found by trying all that it could mean, a third of a millisecond for a
  sum of two integers, thousands of times in a kernel or two. Here each finding is remembered.
* So is the hash of the options of a compilation, which stands in the key of most of what Numba remembers itself.
* LLVM passes over each function alone before it passes over all of them together, where the second does what the first did.
  (Parts are passed over alone: what is never used goes, which must not stay in a cache.)

Together they save about two fifths of the time, and the machine code is as fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from llvmlite.binding import parse_bitcode
from numba import _dynfunc, njit, types  # type: ignore[attr-defined]
from numba.core import caching
from numba.core.caching import CompileResultCacheImpl
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder, Flags, compile_result
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.targetconfig import ConfigStack
from numba.core.typed_passes import NativeLowering, NopythonTypeInference

from dboost.kernels.cache_files import KernelFiles

__all__ = ["KernelCompiler", "KernelFiles", "PartCache", "caching", "check_names"]

_UNNEEDED = {
    "WithLifting", "InlineClosureLikes", "RewriteDynamicRaises", "MakeFunctionToJitFunction", "InlineInlinables",
    "FindLiterallyCalls", "LiteralUnroll", "LiteralPropagationSubPipelinePass", "InlineOverloads", "NopythonRewrites",
    "NoPythonSupportedFeatureValidation", "AnnotateTypes", "DumpParforDiagnostics",
}  # fmt: skip


class _Whole(JITCodeLibrary):
    """LLVM's code of a kernel with its callees, optimised together; Numba does it function by function before."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout


class _Part(JITCodeLibrary):
    """LLVM's code of a function that is not called by itself: tidied up, but never made machine code."""

    def _optimize_final_module(self) -> None:
        """That is for the callers."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def serialize_using_object_code(self) -> Any:
        return self.serialize_using_bitcode()


class PartCache(CompileResultCacheImpl):
    """What reads a part from the cache: as a part."""

    def rebuild(self, target_context: Any, payload: Any) -> Any:
        (name, _, bitcode), descriptor, environment, signature, *_ = payload
        library = _Part(target_context.codegen(), name)
        library._final_module = parse_bitcode(bitcode)
        library._finalize_final_module()
        return compile_result(
            target_context=target_context, typing_context=target_context.typing_context, library=library,
            environment=environment, entry_point=_nothing_to_call(descriptor, environment, library), fndesc=descriptor,
            signature=signature, objectmode=False, lifted=(), reload_init=[], referenced_envs=[],
        )  # fmt: skip


def _nothing_to_call(descriptor: Any, environment: Any, library: _Part) -> Any:
    """Numba's dispatchers must have something that Python could call; a part has no code to run."""
    return _dynfunc.make_function(descriptor.lookup_module(), descriptor.qualname, "", 0, environment, (library,))


class _Options(Flags):
    """Numba's options for one compilation, which do not change any more: it asks for their hash thousands of times."""

    __slots__ = ("_all", "_hash")

    def __init__(self, options: Flags) -> None:
        super().__init__(options)
        self._all = super().values()
        self._hash = super().__hash__()

    def values(self) -> Any:
        return self._all

    def copy(self) -> Flags:
        return Flags(self)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> Any:
        return self is other or super().__eq__(other)


#: What operations (Numba's own, not kernels) were found to be for the types of their arguments.
_KNOWN: dict[Any, Any] = {}
_OPERATION: Any = types.Function
_find = _OPERATION.get_call_type


def _remember(operation: Any, context: Any, arguments: Any, keywords: Any) -> Any:
    """In the place of `types.Function.get_call_type`."""
    if keywords:
        return _find(operation, context, arguments, keywords)
    key = operation, tuple(arguments)
    found = _KNOWN.get(key)
    if found is None:
        found = _KNOWN[key] = _find(operation, context, arguments, keywords)
    return found


@contextmanager
def _remembering(options: Flags) -> Iterator[None]:
    """A step in which Numba does not ask itself the same questions again. (It compiles in one thread at a time.)"""
    before = _OPERATION.get_call_type
    _OPERATION.get_call_type = _remember
    try:
        with ConfigStack().enter(_Options(options)):
            yield
    finally:
        _OPERATION.get_call_type = before


@register_pass(mutates_CFG=True, analysis_only=False)
class _Typing(NopythonTypeInference):
    """Numba's step that finds the types of variables."""

    _name = "kernel_typing"

    def run_pass(self, state: Any) -> bool:
        with _remembering(state.flags):
            return bool(super().run_pass(state))


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(NativeLowering):
    """Numba's step from typed code to LLVM, where a function without a Python wrapper is a part."""

    _name = "kernel_lowering"

    def run_pass(self, state: Any) -> bool:
        with _remembering(state.flags):
            return self._lower(state)

    def _lower(self, state: Any) -> bool:
        flags, codegen, name = state.flags, state.targetctx.codegen(), state.func_id.func_qualname
        if not (flags.no_cpython_wrapper and flags.no_cfunc_wrapper):
            state.library = _Whole(codegen, name)
            state.library.enable_object_caching()
            return bool(super().run_pass(state))
        state.library = _Part(codegen, name)
        flags.no_compile = True
        super().run_pass(state)
        made = state.cr
        function = _nothing_to_call(made.fndesc, made.env, state.library)
        state.targetctx.insert_user_function(function, made.fndesc, [state.library])
        state.cr = made._replace(cfunc=function)
        return True


def check_names() -> None:
    """Look for what is changed, here and in `dboost.kernels`.

    Raises
    ------
    AttributeError
        When a name is not where it was.
    """
    cache: Any = caching
    for owner, names in (
        (cache._CacheLocator, ("ensure_cache_path",)),
        (cache.FunctionCache, ("load_overload", "_load_overload", "save_overload", "_guard_against_spurious_io_errors")),
        (Flags, ("values", "copy")),
        (caching.IndexDataCacheFile, ("_save_data", "_load_data")),
        (JITCodeLibrary, (
            "_optimize_functions", "_optimize_final_module", "_finalize_final_module", "_finalize_dynamic_globals",
            "serialize_using_object_code", "serialize_using_bitcode", "enable_object_caching",
        )),
    ):  # fmt: skip
        for name in names:
            getattr(owner, name)
    with suppress(RuntimeError):  # no folder for a cache
        probe: Any = njit(cache=True)(_nothing)
        kept = probe._cache
        _ = kept._impl.filename_base, kept._cache_path, kept._cache_file


def _nothing() -> None:
    """Never called: what is looked at is its cache."""


_REPLACED = {NativeLowering: _Lowering, NopythonTypeInference: _Typing}


class KernelCompiler(CompilerBase):
    """For Numba's `pipeline_class`."""

    def define_pipelines(self) -> list[Any]:
        whole = DefaultPassBuilder.define_nopython_pipeline(self.state)
        kept = PassManager("kernel")
        for step, description in whole.passes:
            if step.__name__ not in _UNNEEDED:
                kept.add_pass(_REPLACED.get(step, step), description)
        kept.finalize()
        return [kept]
