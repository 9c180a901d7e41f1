"""Tests of a cell backend's memory."""
