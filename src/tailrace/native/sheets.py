"""Messages that consumers read where their producer has them in memory. Apart from the core, as hints are."""

from ._sheets import PLACES, SHEETS_MAX, Held, Notice, Sheet, SheetReader, Sheets, SheetVigil, reap

__all__ = ["PLACES", "SHEETS_MAX", "Held", "Notice", "Sheet", "SheetReader", "SheetVigil", "Sheets", "reap"]
