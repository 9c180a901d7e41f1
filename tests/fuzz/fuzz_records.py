"""Fuzz everything that reads bytes it did not write, for a limited time, with nothing but the standard library.

    python tests/fuzz/fuzz_records.py --seconds 20 --seed 7

It replays the corpus first and then makes cases until the time is up. The cases run in a child, so that even one that
ends the process is named: the last lines of a failure say how to run that case alone.
"""

import argparse
import mmap
import os
import struct
import sys
import time
import traceback
from pathlib import Path
from random import Random

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # for the model, which is in the tests of the native room

import fuzz_inputs  # noqa: E402
from fuzz_cases import replay, run_case  # noqa: E402

_PROGRESS = struct.Struct("<Bq")  # what runs now, seen by the parent even when the child is gone
_REPLAYING, _FUZZING = 0, 1
BYTES_MAX, FILES_MAX = 4096, 20  # of the corpus


def main() -> int:
    options = _options()
    if options.write_corpus:
        return _write_corpus(options.corpus)
    progress = mmap.mmap(-1, _PROGRESS.size)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _run(options, progress)
            code = 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return 0
    if code < 0:
        print(f"ended by signal {-code}", file=sys.stderr)
    phase, number = _PROGRESS.unpack(progress[:])
    if phase == _REPLAYING:
        print(f"failed on {sorted(path.name for path in options.corpus.iterdir())[number]}", file=sys.stderr)
    else:
        again = f"--seed {options.seed} --only {number}"
        print(f"failed; again with: python tests/fuzz/fuzz_records.py {again}", file=sys.stderr)
    return 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to make cases")
    parser.add_argument(
        "--seed", type=int, default=time.time_ns() % 2**32, help="decides every case; printed at the end"
    )
    parser.add_argument("--only", type=int, help="run the case of this number alone")
    parser.add_argument("--corpus", type=Path, default=HERE / "corpus", help="a folder of inputs to begin with")
    parser.add_argument("--write-corpus", action="store_true", help="write the inputs to begin with, and nothing else")
    return parser.parse_args()


def _run(options: argparse.Namespace, progress: mmap.mmap) -> None:
    corpus = fuzz_inputs.load(options.corpus)
    if options.only is not None:
        progress[:] = _PROGRESS.pack(_FUZZING, options.only)
        run_case(_random(options.seed, options.only), corpus)
        return
    for number, (name, raw) in enumerate(corpus.items()):
        progress[:] = _PROGRESS.pack(_REPLAYING, number)
        replay(name, raw)
    begin_s, cases = time.monotonic(), 0
    while (took_s := time.monotonic() - begin_s) < options.seconds:
        progress[:] = _PROGRESS.pack(_FUZZING, cases)
        run_case(_random(options.seed, cases), corpus)
        cases += 1
    rate = f"{cases} cases in {took_s:.1f} s, {cases / max(took_s, 1e-9):.0f} cases per second"
    print(f"{len(corpus)} files replayed, {rate}, seed {options.seed}: no failure")


def _random(seed: int, case: int) -> Random:
    return Random(f"{seed}/{case}")


def _write_corpus(corpus: Path) -> int:
    seeds = fuzz_inputs.seeds()
    assert len(seeds) < FILES_MAX, len(seeds)
    corpus.mkdir(parents=True, exist_ok=True)
    for name, raw in seeds.items():
        assert len(raw) < BYTES_MAX, name
        (corpus / name).write_bytes(raw)
    print(f"{len(seeds)} files in {corpus}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
