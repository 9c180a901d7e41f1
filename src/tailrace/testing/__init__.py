"""A disk that forgets, a disk that fails, a clock that obeys, a network that is cut and a die that repeats; and a wide
area between real processes of one machine.

But for the last, nothing here touches the machine itself; what looks like chance comes from a seed.

>>> disk = SimulatedDisk()
>>> handle = disk.create("/prices")
>>> _ = disk.write(handle, 0, [b"9.99"])
>>> disk.sync(handle)                          # the content is safe now, the name is not yet
>>> disk.crash()
>>> disk.list("/")
[]
"""

from .clock import ManualClock
from .faulty_disk import Fault, FaultyDisk, SimulatedCrash
from .randomness import SeededRandomness
from .simulated_disk import SimulatedDisk
from .virtual_network import VirtualNetwork
from .virtual_time import VirtualClock, VirtualTime
from .wide_area import WideArea

__all__ = [
    "Fault",
    "FaultyDisk",
    "ManualClock",
    "SeededRandomness",
    "SimulatedCrash",
    "SimulatedDisk",
    "VirtualClock",
    "VirtualNetwork",
    "VirtualTime",
    "WideArea",
]
