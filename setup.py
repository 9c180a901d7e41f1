"""Build the native core. TAILRACE_SANITIZE=1 builds it under ASan and UBSan, for the tests of the native room."""

import os

from Cython.Build import cythonize
from setuptools import Extension, setup

OWN_C = ["blocks", "checksum", "hash", "records"]
FLAGS = ["-std=c17", "-O3", "-fno-math-errno", "-Wall", "-Wextra", "-Werror"]
# Cython's own output is not ours to keep clean under -Wextra, so only these two are let through.
CYTHON_NOISE = ["-Wno-unused-parameter", "-Wno-unused-function"]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g", "-O1"]

sanitize = SANITIZE if os.environ.get("TAILRACE_SANITIZE") == "1" else []
core = Extension(
    "tailrace.native._core",
    sources=["src/tailrace/native/_core.pyx", *(f"src/tailrace/native/{name}.c" for name in OWN_C)],
    depends=[f"src/tailrace/native/{name}.h" for name in OWN_C],
    include_dirs=["src/tailrace/native"],
    extra_compile_args=FLAGS + CYTHON_NOISE + sanitize,
    extra_link_args=sanitize,
)
setup(ext_modules=cythonize([core], language_level=3, include_path=["src"]))
