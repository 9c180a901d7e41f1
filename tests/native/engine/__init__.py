"""Tests of one-sided reads between hosts: the engine that serves them, and the link that asks."""
