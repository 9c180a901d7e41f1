"""Memory that a process of a deployment frees stays its own: copies free a megabyte and take one, a thousand times a
second, and pages that went back to the kernel meanwhile come back empty, one fault each. A library must not decide this
for its program, so only commands that run for long do."""

import ctypes

# Of glibc's mallopt; other C libraries have none, and stay as they are.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_MMAP_BYTES = 32 << 20  # larger pieces come from the kernel, and go back to it; this is the most that glibc allows
_TRIM_BYTES = 64 << 20  # so much that is free at the end of the heap is kept


def keep_freed_memory() -> bool:
    """Whether this C library can be told so. Once it was, it no longer adapts these by itself."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _MMAP_BYTES) and mallopt(_TRIM_THRESHOLD, _TRIM_BYTES))
