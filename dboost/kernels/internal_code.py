"""The code of kernels that only other kernels call: linked into its callers, and neither optimised nor compiled by itself.

Numba optimises every function as a whole and makes machine code of it, and then does both again in each of its callers, which
contain a copy of it. For functions that Python never calls the first time is wasted, a sixth of the first fit on a machine. So
the library of such a kernel ends where the linking of its callers begins, after LLVM's passes over single functions. The
copies of its code in the callers are optimised once, with what is known at the call.

What is in the cache for such a kernel is this code, for callers that are compiled later.

This module uses private parts of Numba. `dboost.kernels` imports it only with the version of Numba that it was written for.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
from numba.core.codegen import JITCodeLibrary

from dboost.kernels.pipeline import KernelCompiler

#: The second element of a library as it is in the cache.
KIND = "internal"


class InternalLibrary(JITCodeLibrary):
    """The code of one kernel that only kernels call."""

    @classmethod
    def load(cls, codegen: Any, name: str, bitcode: bytes) -> InternalLibrary:
        """Return a library from what `serialize_using_object_code` has made of it."""
        library = cls(codegen, name)
        library._final_module = library._shared_module = llvm.parse_bitcode(bitcode)
        library._finalized = True
        return library

    @property
    def codegen(self) -> Any:
        """Where callers of the library set the addresses of Python objects that code uses. Kernels use none."""
        return _NoObjects

    def _optimize_final_module(self) -> None:
        """Leave the optimisation to the callers."""

    def _finalize_final_module(self) -> None:
        """Make no machine code."""
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Return 0: there is no machine code."""
        self._ensure_finalized()
        return 0

    def serialize_using_object_code(self) -> tuple[str, str, bytes]:
        """Return what the cache holds: the code for linking alone."""
        self._ensure_finalized()
        return self.name, KIND, self._get_module_for_linking().as_bitcode()


class _NoObjects:
    @staticmethod
    def set_env(name: str, env: Any) -> None:
        """Do nothing: no machine code reads the address."""


class InternalCompiler(KernelCompiler):
    """For the `pipeline_class` of kernels that only kernels call."""

    def define_pipelines(self) -> list[Any]:
        self.state.library = InternalLibrary(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        return super().define_pipelines()
