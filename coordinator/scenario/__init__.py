"""Scenario files: schema, loading with positions, and thresholds."""
