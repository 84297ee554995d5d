"""Aggregation that withstands some poisoned updates: robust rules, and bounds on what one device can add."""
