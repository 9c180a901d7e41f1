"""The process behind WideArea: makes the namespaces, and hands packets on from one to the other when they are due.

`python -m tailrace.testing.wide_area_relay SITES DELAY_S SEED` says which of its descriptors are the namespaces, then
takes terms of ways as lines of JSON until its input ends. Sites are numbered from 1.
"""

import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import socket
import struct
import sys
import time
from dataclasses import dataclass
from typing import Any

_NEW_NETWORK = 0x40000000  # for unshare(2)
_TUNSETIFF, _TUN_WITHOUT_HEADER = 0x400454CA, 0x1001
_SET_ADDRESS, _SET_NETMASK, _SET_MTU, _GET_FLAGS, _SET_FLAGS = 0x8916, 0x891C, 0x8922, 0x8913, 0x8914
_UP = 0x1
_MTU = 9000  # large packets: each costs us the same
_HELD_BYTES_MAX = 64 << 20  # what is more is dropped, as routers do
_AT_ONCE = 64  # packets of one site before the others' turn
_DEVICE = b"wide"


def address_of(number: int) -> str:
    return f"10.77.0.{number}"


@dataclass(slots=True)
class _Way:
    delay_s: float | None = None  # None: the usual one
    loss: float = 0.0
    cut: bool = False
    last_due_s: float = 0.0  # packets do not overtake each other


class Relay:
    def __init__(self, sites: int, delay_s: float, seed: int) -> None:
        self._delay_s, self._random = delay_s, random.Random(seed)
        self.namespaces: list[int] = []
        self._devices: dict[int, int] = {}  # by number
        self._ways: dict[tuple[int, int], _Way] = {}
        self._held: list[tuple[float, int, int, bytes]] = []
        self._held_bytes = self._count = 0
        for number in range(1, sites + 1):
            self._make_site(number)

    def run(self) -> None:
        ready = select.epoll()
        names = {device: number for number, device in self._devices.items()}
        for descriptor in (*names, sys.stdin.fileno()):
            ready.register(descriptor, select.EPOLLIN)
        commands = b""
        while True:
            left_s = max(0.0, self._held[0][0] - time.monotonic()) if self._held else -1
            for descriptor, _ in ready.poll(left_s):
                if descriptor in names:
                    self._take(descriptor, names[descriptor])
                    continue
                piece = os.read(descriptor, 65536)
                if not piece:
                    return
                *whole, commands = (commands + piece).split(b"\n")
                for line in whole:
                    self._obey(json.loads(line))
            self._hand_on()

    # ---- inside

    def _make_site(self, number: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "a network namespace cannot be made")
        self.namespaces.append(os.open("/proc/self/ns/net", os.O_RDONLY))
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", _DEVICE, _TUN_WITHOUT_HEADER))
        self._devices[number] = device
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            for name, address in ((_DEVICE, address_of(number)), (b"lo", "")):
                if address:
                    for request, what in ((_SET_ADDRESS, address), (_SET_NETMASK, "255.255.255.0")):
                        plain = struct.pack("16sHH4s16x", name, socket.AF_INET, 0, socket.inet_aton(what))
                        fcntl.ioctl(control, request, plain)
                    fcntl.ioctl(control, _SET_MTU, struct.pack("16si20x", name, _MTU))
                flags = fcntl.ioctl(control, _GET_FLAGS, struct.pack("16s24x", name))
                (now,) = struct.unpack_from("16xH", flags)
                fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sH22x", name, now | _UP))

    def _way(self, source: int, target: int) -> _Way:
        return self._ways.setdefault((source, target), _Way())

    def _obey(self, command: dict[str, Any]) -> None:
        way = self._way(*command.pop("way"))
        for name, value in command.items():
            setattr(way, name, value)

    def _take(self, device: int, source: int) -> None:
        for _ in range(_AT_ONCE):
            try:
                packet = os.read(device, 65536)
            except (BlockingIOError, OSError):
                return
            if len(packet) < 20 or packet[0] >> 4 != 4:
                continue  # not IPv4
            target = packet[19]
            way = self._way(source, target)
            if target not in self._devices or way.cut or self._held_bytes > _HELD_BYTES_MAX:
                continue
            if way.loss and self._random.random() < way.loss:
                continue
            delay_s = self._delay_s if way.delay_s is None else way.delay_s
            way.last_due_s = max(way.last_due_s, time.monotonic() + delay_s)
            self._count += 1
            heapq.heappush(self._held, (way.last_due_s, self._count, target, packet))
            self._held_bytes += len(packet)

    def _hand_on(self) -> None:
        now_s = time.monotonic()
        while self._held and self._held[0][0] <= now_s:
            *_, target, packet = heapq.heappop(self._held)
            self._held_bytes -= len(packet)
            try:
                os.write(self._devices[target], packet)
            except OSError:
                continue  # no room there: lost


if __name__ == "__main__":
    relay = Relay(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
    print(json.dumps(relay.namespaces), flush=True)
    relay.run()
