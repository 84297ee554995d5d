"""Tuning: settings of a scenario are searched for that make one figure best and hold all thresholds."""
