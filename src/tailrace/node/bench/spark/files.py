"""What a run leaves behind, gone before the next."""

import os
import shutil


def remove(*paths: str) -> None:
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
        for name in (path, f"{path}-wal", f"{path}-shm", f"{path}-journal"):
            if os.path.isfile(name):
                os.unlink(name)
