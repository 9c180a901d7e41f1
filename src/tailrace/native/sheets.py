"""Messages that consumers read where their producer has them in memory. Apart from the core, as hints are."""

from ._sheets import PLACES, SHEETS_MAX, Held, Sheet, SheetReader, Sheets, Vigil, reap

__all__ = ["PLACES", "SHEETS_MAX", "Held", "Sheet", "SheetReader", "Sheets", "Vigil", "reap"]
