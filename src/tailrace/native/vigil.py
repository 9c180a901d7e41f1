"""The shortest way to what comes next, and who goes it."""

from ._vigil import Vigil, Watchman

__all__ = ["Vigil", "Watchman"]
