"""The native parts of the package; everything else about it is in pyproject.toml.

Each extension is optional: without a compiler the package installs without it, and the Python code beside the sources
says what is missing. A compile error of our own looks the same to pip, so tests assert under ``CI=true`` that every
extension was built. No flag depends on the machine that builds: code for newer processors is compiled on its own
(``Library.levels``) and chosen when the library is loaded. ``NATIVE_FLAGS`` in the environment are flags that come last
in all compiler and linker commands: for sanitizers, and for other levels of optimisation, which change no bit;
``NATIVE_LEVELS`` are the levels to be built.
"""

import os
import platform
import shlex
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

MORE_FLAGS = shlex.split(os.environ.get("NATIVE_FLAGS", ""))
FLAGS = ["-std=c++17", "-O3", "-g0", "-fvisibility=hidden", "-Wall", "-Wextra"]
# one rounding for each operation written, whatever the processor: results must not depend on it
FLOAT_FLAGS = ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
LINK_FLAGS = [*(["-static-libstdc++", "-static-libgcc"] if platform.system() == "Linux" else []), *MORE_FLAGS]

AVX2 = ["-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2", "-mlzcnt", "-mpopcnt"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512cd", "-mprefer-vector-width=512"]
LEVELS = {"base": []}
if platform.machine().lower() in ("x86_64", "amd64"):
    LEVELS |= {"avx2": AVX2, "avx512": AVX512}
if os.environ.get("NATIVE_LEVELS"):
    LEVELS = {name: LEVELS[name] for name in os.environ["NATIVE_LEVELS"].split(",") if name in LEVELS}


class Library(Extension):
    """A shared library with a C interface, loaded by ctypes; no Python module.

    The ``leveled`` sources are compiled once for each level of ``LEVELS``, with the macro ``LEVEL`` set to its name.
    """

    def __init__(self, name: str, sources: list[str], leveled: list[str], **options) -> None:
        super().__init__(name, sources, **options)
        self.leveled = leveled


class Build(build_ext):
    """Names libraries plainly, compiles their leveled sources, and uses all processors."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self.parallel = True

    def get_ext_filename(self, fullname: str) -> str:
        if any(isinstance(ext, Library) and fullname.split(".")[-1] == ext.name.split(".")[-1] for ext in EXTENSIONS):
            return os.path.join(*fullname.split(".")) + ".so"
        return super().get_ext_filename(fullname)

    def build_extension(self, ext: Extension) -> None:
        if isinstance(ext, Library):
            pairs = [(level, source) for level in LEVELS for source in ext.leveled]
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                made = pool.map(lambda pair: self._compile(ext, *pair), pairs)
                ext.extra_objects = [path for paths in made for path in paths]
        super().build_extension(ext)

    def _compile(self, ext: Library, level: str, source: str) -> list[str]:
        return self.compiler.compile(
            [source],
            output_dir=os.path.join(self.build_temp, level),
            macros=[*ext.define_macros, ("LEVEL", level)],
            include_dirs=ext.include_dirs,
            extra_postargs=[*ext.extra_compile_args, *LEVELS[level], *MORE_FLAGS],
            depends=ext.depends,
        )


class Wheel(bdist_wheel):
    """Asks of a machine only what the native parts do that were built."""

    def get_tag(self) -> tuple[str, str, str]:
        built = any(Path(self.get_finalized_command("build").build_lib).rglob("*.so"))
        return super().get_tag() if built else ("py3", "none", "any")


def files(pattern: str) -> list[str]:
    return sorted(glob(pattern))


EXTENSIONS = [
    Library(
        "neuronx_cc.runtime.native.libcore",
        [name for name in files("runtime/native/*.cpp") if not any(part in name for part in ("/level_", "/race_"))],
        leveled=files("runtime/native/level_*.cpp"),
        depends=["setup.py", *files("runtime/native/*.h")],
        define_macros=[(f"HAVE_{name.upper()}", "1") for name in LEVELS],
        extra_compile_args=[*FLAGS, *FLOAT_FLAGS, *MORE_FLAGS],
        extra_link_args=[*LINK_FLAGS, "-pthread"],
        language="c++",
        optional=True,
    ),
    Library(
        "neuronx_cc.runtime.native.librace",
        files("runtime/native/race_*.cpp"),
        leveled=[],
        depends=["setup.py"],
        extra_compile_args=[*FLAGS, *MORE_FLAGS],
        extra_link_args=LINK_FLAGS,
        language="c++",
        optional=True,
    ),
    Extension(
        "neuronx_cc.driver.jax_backend._pjrt",
        files("runtime/pjrt/*.cpp"),
        depends=["setup.py", *files("runtime/pjrt/*.h")],
        define_macros=[("Py_LIMITED_API", "0x030B0000")],
        extra_compile_args=[*FLAGS, *MORE_FLAGS],
        extra_link_args=[*LINK_FLAGS, "-pthread"],
        language="c++",
        optional=True,
        py_limited_api=True,
    ),
]

# the extensions use the limited API or no Python at all: one wheel for all versions of Python
setup(
    ext_modules=EXTENSIONS,
    cmdclass={"build_ext": Build, "bdist_wheel": Wheel},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
