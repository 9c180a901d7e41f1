"""Randomness: nonces of appenders and owners. Simulations bring a seeded one."""

import secrets
from typing import Protocol


class Randomness(Protocol):
    def nonce(self) -> int:
        """64 random bits, never zero."""
        ...


class SystemRandomness:
    def nonce(self) -> int:
        return secrets.randbits(63) + 1
