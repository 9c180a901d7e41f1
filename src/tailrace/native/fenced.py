"""A flush on this machine's own disk, in one call. Apart from the core: only those who write files need it."""

from ._fenced import Side, flush

__all__ = ["Side", "flush"]
