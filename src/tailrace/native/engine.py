"""One-sided reads between hosts: `Engine` serves a cell's memory over TCP, `Link` reads it."""

from ._engine import TICKET_BYTES, Engine, Link, State

__all__ = ["TICKET_BYTES", "Engine", "Link", "State"]
