"""Benchmarks: ours and the limit, or the peer, in one run. A figure is a median over repeats, with its spread."""

from .report import table

__all__ = ["table"]
