"""Ubiq: messages of streams processed in work units, committed once. Spark is its engine."""
