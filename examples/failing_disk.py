"""Test your own code against a disk that fails: the tools that Tailrace is tested with are yours too.

# > flush failed: DiskFull
# > after making room: [b'first', b'second']
"""

import math

from tailrace import StreamConfig
from tailrace.config import ProducerConfig
from tailrace.errors import FlushFailed
from tailrace.files import PosixFiles
from tailrace.streams import Producer, ShardLog, ShardTail
from tailrace.testing import ManualClock, SimulatedDisk

disk, clock = SimulatedDisk(), ManualClock()
files = PosixFiles("/world", disk=disk, clock=clock)
log = ShardLog(files, clock, "orders", 0, StreamConfig())
producer = Producer("orders", 1, {0: log}, ProducerConfig(buffer_s=math.inf), clock, message_bytes_max=1000)

producer.send(b"first")
producer.flush()
disk.capacity_bytes = 0
producer.send(b"second")
try:
    producer.flush()
except FlushFailed as problem:
    print("flush failed:", type(problem.__cause__).__name__)
disk.capacity_bytes = None
producer.flush()

tail = ShardTail(files, clock, "orders", 0, "earliest")
values = []
while batch := tail.poll(bytes_max=1000):
    values += [message.value for message in batch]
print("after making room:", values)
