"""The passes that compile a kernel: Numba's own, without two that kernels do not need.

One looks for closures and comprehensions to inline, the other rewrites expressions of whole arrays. Kernels contain neither,
and leaving the two passes out shortens compilation by about a tenth.
"""

from __future__ import annotations

from typing import Any

from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager

_UNNEEDED = {"InlineClosureLikes", "NopythonRewrites"}


class KernelCompiler(CompilerBase):
    """For the `pipeline_class` of Numba's decorators."""

    def define_pipelines(self) -> list[Any]:
        kernel_passes = PassManager("kernel")
        for compiler_pass, description in DefaultPassBuilder.define_nopython_pipeline(self.state).passes:
            if compiler_pass.__name__ not in _UNNEEDED:
                kernel_passes.add_pass(compiler_pass, description)
        kernel_passes.finalize()
        return [kernel_passes]
