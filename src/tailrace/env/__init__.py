"""Clock, disk and randomness behind small protocols, so that the same code runs on a machine and in a simulation; and
how threads share the processor."""

from .clock import Clock, SystemClock
from .disk import Disk, Identity, SystemDisk
from .randomness import Randomness, SystemRandomness
from .threads import give_way

__all__ = ["Clock", "Disk", "Identity", "Randomness", "SystemClock", "SystemDisk", "SystemRandomness", "give_way"]
