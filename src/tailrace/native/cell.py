"""The memory of one cell backend: `Cell` is the backend's own, `CellView` reads it from any process of the host."""

from ._cell import PARTITIONS, SLAB_BYTES, Cell, CellView, Outcome, key_hash

__all__ = ["PARTITIONS", "SLAB_BYTES", "Cell", "CellView", "Outcome", "key_hash"]
