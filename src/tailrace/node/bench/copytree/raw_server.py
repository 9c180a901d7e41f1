"""The receiving process of the raw stream."""

import sys
import threading

from ....wire.raw_stream import serve_raw

if __name__ == "__main__":
    with serve_raw(sys.argv[1], int(sys.argv[2])):
        print("ready", flush=True)
        threading.Event().wait()
