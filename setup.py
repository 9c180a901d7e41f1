"""Build the native room. TAILRACE_SANITIZE=1 builds it under ASan and UBSan, for the tests of the native room."""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

CORE_C = ["blocks", "checksum", "hash", "records"]
CELL_C = ["checksum", "hash", "cell_hash", "cell_index", "cell_slab", "cell_store", "cell_tombs", "cell_view"]
FLAGS = ["-std=c17", "-O3", "-fno-math-errno", "-Wall", "-Wextra", "-Werror"]
# Cython's own output is not ours to keep clean under -Wextra, so only these two are let through.
CYTHON_NOISE = ["-Wno-unused-parameter", "-Wno-unused-function"]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g", "-O1"]

sanitize = SANITIZE if os.environ.get("TAILRACE_SANITIZE") == "1" else []


def extension(name: str, own_c: list[str]) -> Extension:
    return Extension(
        f"tailrace.native.{name}",
        sources=[f"src/tailrace/native/{name}.pyx", *(f"src/tailrace/native/{part}.c" for part in own_c)],
        depends=[str(header) for header in Path("src/tailrace/native").glob("*.h")],
        include_dirs=["src/tailrace/native"],
        extra_compile_args=FLAGS + CYTHON_NOISE + sanitize,
        extra_link_args=sanitize,
    )


extensions = [extension("_core", CORE_C), extension("_cell", CELL_C)]
setup(ext_modules=cythonize(extensions, language_level=3, include_path=["src"]))
