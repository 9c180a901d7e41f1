"""Wake-up hints between processes of one host. Apart from the core: only those who follow streams need them."""

from ._hints import SLOTS, WAIT_MAX, Hints, Waiter, take_short_turns

__all__ = ["SLOTS", "WAIT_MAX", "Hints", "Waiter", "take_short_turns"]
