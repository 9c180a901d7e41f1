"""Ctrl-C and SIGTERM as an event that threads wait for.

A handler of signals runs in the middle of whatever the main thread does. That may be a wait for the very event it is to
set, whose lock the main thread holds at that moment: then both wait for ever. So the handler only leaves a word, in a
queue that may be used there, and another thread sets the event.
"""

import signal
import threading
from collections.abc import Callable
from queue import SimpleQueue


def stop_asked(*numbers: int) -> threading.Event:
    """Set when one of these signals has come, or Ctrl-C or SIGTERM. From the main thread only."""
    stopping = threading.Event()
    on_signal(stopping.set, *numbers or (signal.SIGINT, signal.SIGTERM))
    return stopping


def on_signal(act: Callable[[], object], *numbers: int) -> None:
    """Do this once, in a thread of its own, when one of these signals has come."""
    heard: SimpleQueue[None] = SimpleQueue()

    def listen() -> None:
        heard.get()
        act()

    threading.Thread(target=listen, name="tailrace signals", daemon=True).start()
    for number in numbers:
        signal.signal(number, lambda *_: heard.put(None))
