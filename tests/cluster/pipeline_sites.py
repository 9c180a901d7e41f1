"""Starting, feeding and ending the sites of a pipeline, for the tests that kill them."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

import tailrace
from tailrace.pipeline.ranges import overlap
from tailrace.pipeline.sinks import parquet

APP = f"{Path(__file__).with_name('pipeline_app.py')}:pipeline"


class Sites:
    """Starts and ends runners; knows what was sent and what came out."""

    def __init__(self, folder: Path, etcd: tuple[str, ...] = ()) -> None:
        """`etcd`: the members that have the pipeline's state; else it is in a file."""
        self.folder, self.out, self.state = folder, folder / "out", folder / "state.db"
        self.running: list[subprocess.Popen[str]] = []
        self.sent: Counter[str] = Counter()
        self._etcd, self._store = etcd, [] if etcd else ["--state", str(self.state)]

    def start(
        self, site: str, world: str = "us", engine: str = "inline", *options: str, **env: str
    ) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tailrace", "pipeline", "run", APP, "--site", site, "--engine", engine]
        command += ["--world", str(self.folder / world), *self._store, "--slots", "2", "--json", *options]
        child = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PIPELINE_OUT": str(self.out), "PIPELINE_UNIT": "4000", **env},
        )
        self.running.append(child)
        return child

    def produce(self, count: int, world: str = "us", extra: tuple[bytes, ...] = ()) -> None:
        if self._etcd:
            (self.folder / world).mkdir(exist_ok=True)
            (self.folder / world / "tailrace.toml").write_text(f"[coordination]\netcd = {list(self._etcd)}\n")
        with tailrace.open(self.folder / world) as opened, opened.producer("clicks", shards=2) as producer:
            for number in range(count):
                producer.send(b"c%d %d" % (number % 7, number))
                self.sent[f"c{number % 7}"] += 1
            for value in extra:
                producer.send(value)

    def tell(self, *words: str, world: str = "us") -> Any:
        command = [sys.executable, "-m", "tailrace", "pipeline", *words, "--world", str(self.folder / world)]
        command += [*self._store, "--json"]
        env = {**os.environ, "PIPELINE_OUT": str(self.out)}
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def finish(self, child: subprocess.Popen[str]) -> dict[str, Any]:
        """What it says at its end."""
        said, _ = child.communicate(timeout=120)
        assert child.returncode == 0
        return dict(json.loads(said))

    def stop(self, child: subprocess.Popen[str]) -> None:
        """Ask it to end. One that has not begun yet has nothing to say and is simply ended by the signal."""
        child.terminate()
        child.communicate(timeout=120)
        assert child.returncode in (0, -signal.SIGTERM)

    def outputs(self) -> int:
        return len(list(self.out.glob("part-*"))) if self.out.exists() else 0

    def counted(self) -> Counter[str]:
        found: Counter[str] = Counter()
        if self.outputs():
            for row in ds.dataset(self.out).to_table().to_pylist():
                found[row["campaign"]] += row["n"]
        return found

    def check(self) -> None:
        assert self.counted() == self.sent
        ranges = [one for footer in parquet(self.out).outputs() for one in footer.ranges]
        assert overlap(ranges) is None
        staged = self.out / "_staging"
        assert not list(staged.glob("*.parquet")), "what was staged and lost is collected"

    def end(self) -> None:
        for child in self.running:
            if child.poll() is None:
                child.send_signal(signal.SIGCONT)
                child.kill()
            child.communicate()
