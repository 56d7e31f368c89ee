"""The one part of the package that is compiled, for which setup.cfg has no words: the kernels of the codecs.

Without a C compiler the package installs all the same; torch then does the kernels' work, slower.
"""

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# Same bytes everywhere: no fused multiply-add. The other two only allow loops to be vectorised.
GCC_FLAGS = [
    "-O3",
    "-g0",
    "-std=gnu11",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-pthread",
]


class BuildKernels(build_ext):
    """A plain C library, not a Python module: it needs no Python.h and is opened by ctypes."""

    def build_extension(self, ext: Extension) -> None:
        if self.compiler.compiler_type == "msvc":
            ext.extra_compile_args = ["/O2", "/fp:precise"]
        else:
            ext.extra_compile_args = GCC_FLAGS
            ext.extra_link_args = ["-pthread", "-lm"]
        super().build_extension(ext)

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []


setup(
    ext_modules=[Extension("compressors._kernels", ["compressors/_kernels.c"], optional=True)],
    cmdclass={"build_ext": BuildKernels},
)
