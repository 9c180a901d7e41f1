"""The fuzz driver finds nothing in a short run, and would tell if it did."""

import os
import subprocess
import sys
from pathlib import Path

import tailrace

HERE = Path(__file__).resolve().parent
DRIVER, CORPUS = HERE / "fuzz_records.py", HERE / "corpus"


def fuzz(*arguments):
    command = [sys.executable, str(DRIVER), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(Path(tailrace.__file__).parents[1])}  # the same Tailrace as here
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_short_run_finds_nothing():
    run = fuzz("--seconds", 10)
    assert run.returncode == 0, run.stderr
    assert "cases per second" in run.stdout
    print(run.stdout)


def test_the_corpus_is_small_and_can_be_made_again(tmp_path):
    assert fuzz("--write-corpus", "--corpus", tmp_path).returncode == 0
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_bytes() for path in CORPUS.iterdir()}
    assert len(kept) < 20
    assert all(len(raw) < 4096 for raw in kept.values())
    assert {name: kept.get(name) for name in made} == made


def test_a_failure_names_the_file_that_made_it(tmp_path):
    (tmp_path / "sound.names").write_text("stream.json")
    (tmp_path / "unheard.of").write_bytes(b"")
    run = fuzz("--seconds", 0, "--corpus", tmp_path)
    assert run.returncode == 1
    assert "nobody reads .of" in run.stderr
    assert "failed on unheard.of" in run.stderr


def test_a_failure_in_a_case_names_the_seed_that_made_it(tmp_path):
    """A header in the corpus that is not one of those that the cases know fails as soon as a case picks it."""
    wrong = bytearray((CORPUS / "plain.header").read_bytes())
    wrong[0] ^= 1
    (tmp_path / "wrong.header").write_bytes(wrong)
    run = fuzz("--seconds", 10, "--seed", 1, "--corpus", tmp_path)
    assert run.returncode == 1
    again = run.stderr.strip().rpartition("fuzz_records.py ")[2].split()
    assert again[:3] == ["--seed", "1", "--only"]
    assert fuzz(*again, "--corpus", tmp_path).returncode == 1
    assert fuzz(*again, "--corpus", CORPUS).returncode == 0
