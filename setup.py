"""Build the native room. TAILRACE_SANITIZE=1 builds it under ASan and UBSan, for the tests of the native room."""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

CORE_C = ["blocks", "checksum", "hash", "pages", "records"]
SHARED_C = ["checksum", "hash", "cell_hash", "cell_probe", "cell_sum", "cell_view"]
CELL_C = [*SHARED_C, "cell_apply", "cell_cohort", "cell_column", "cell_folder", "cell_ghosts", "cell_index"]
CELL_C += ["cell_mutation", "cell_recency", "cell_slab", "cell_store", "cell_tombs"]
ENGINE_C = [*SHARED_C, "cell_answer", "cell_engine", "cell_link", "cell_mutation", "cell_round_trip", "cell_tickets"]
CLIENT_C = [*SHARED_C, "cell_client", "cell_courier", "cell_link", "cell_mutation", "cell_round_trip", "cell_watch"]
FLAGS = ["-std=c17", "-O3", "-fno-math-errno", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
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


OWN_C = {
    "_core": CORE_C,
    "_fenced": ["fenced"],
    "_hints": ["hints"],
    "_sheets": ["sheets", "hints", "records", "checksum"],
    "_cell": CELL_C,
    "_client": CLIENT_C,
    "_vigil": [],
    "_follower": ["checksum", "lengths", "records"],
    "_engine": ENGINE_C,
}
extensions = [extension(name, own_c) for name, own_c in OWN_C.items()]
setup(ext_modules=cythonize(extensions, language_level=3, include_path=["src"]))
