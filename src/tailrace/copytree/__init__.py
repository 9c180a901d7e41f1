"""Streams travel between clusters: routing decides along which tree."""
