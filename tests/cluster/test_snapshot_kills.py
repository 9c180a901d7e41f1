"""A process that takes snapshots and collects behind them is killed again and again; views stay right."""

import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import tailrace
from conftest import wait_until

KILLS = 5
SNAPSHOTS = """
import sys, tailrace
world = tailrace.open(sys.argv[1])
print("begun", flush=True)
while True:
    world.snapshot("s")
    world.trim("s")
"""


def test_kill_9_of_whoever_takes_snapshots(tmp_path: Path) -> None:
    source, model, stop = random.Random(9), dict[bytes, bytes](), threading.Event()
    pause = threading.Event()
    with tailrace.open(tmp_path) as world:
        world.create_stream("s", shards=2, file_bytes=20_000, retention=tailrace.Retention(keeps_snapshots=2))
        with world.producer("s", buffer_s=0.005) as producer, world.view("s") as long_lived:

            def produce() -> None:
                while not stop.is_set():
                    for _ in range(200):
                        key = b"key-%d" % source.randrange(500)
                        if source.random() < 0.1:
                            producer.send(None, key=key)
                            model.pop(key, None)
                        else:
                            producer.send(value := source.randbytes(30), key=key)
                            model[key] = value
                    pause.wait(0.002)

            thread = threading.Thread(target=produce)
            thread.start()
            try:
                for _ in range(KILLS):
                    newest = max((snapshot.created_us for snapshot in world.snapshots("s")), default=0)
                    command = [sys.executable, "-c", SNAPSHOTS, str(tmp_path)]
                    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
                    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) as process:
                        try:
                            wait_until(
                                lambda newest=newest: any(one.created_us > newest for one in world.snapshots("s")),
                                "a new snapshot",
                            )
                            pause.wait(source.random() / 20)  # so that the kill comes anywhere
                        finally:
                            process.kill()
                    before = producer.positions
                    with world.view("s") as view:
                        assert view.notes == (), "a snapshot that is visible is whole"
                        assert all(view.positions[shard] >= at for shard, at in before.items())
            finally:
                stop.set()
                thread.join()
            producer.flush()
            assert long_lived.wait_for(producer, 60), long_lived.problem
            assert dict(long_lived.items()) == model
            with world.view("s") as view:
                assert dict(view.items()) == model
                assert view.updates < producer.flushed_count, "it began with a snapshot"
        assert any(status.start > 0 for status in world.stream_status("s")), "files were collected"
