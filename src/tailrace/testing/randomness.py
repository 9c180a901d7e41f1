"""Nonces that repeat with their seed."""

import random


class SeededRandomness:
    """Implements `tailrace.env.Randomness`. Uses all 64 bits, so that a signed field somewhere shows itself."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def nonce(self) -> int:
        return self._random.randrange(1, 1 << 64)
