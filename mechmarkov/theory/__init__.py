"""Closed forms and statistics: pure functions in numpy float64 and nats; no torch."""
