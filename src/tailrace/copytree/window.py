"""How much may be on its way to a writer: pure. What is not taken yet is bounded by the window that the writer grants,
so that a slow disk downstream holds back the reader instead of filling memory. One batch may always be on its way: a
window smaller than that must not stop the copy."""


class Window:
    def __init__(self) -> None:
        self.sent_bytes = self.taken_bytes = self.granted_bytes = 0

    @property
    def room_bytes(self) -> int:
        waiting = self.sent_bytes - self.taken_bytes
        return max(0, self.granted_bytes - waiting) if waiting else max(1, self.granted_bytes)

    def sent(self, size: int) -> None:
        assert size >= 0, size
        self.sent_bytes += size

    def taken(self, total: int, granted: int) -> bool:
        """False: the writer claims to have taken what was never sent."""
        if not self.taken_bytes <= total <= self.sent_bytes:
            return False
        self.taken_bytes, self.granted_bytes = total, granted
        return True
