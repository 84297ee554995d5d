"""Sweeps: many runs of one scenario in parallel processes, and one table of their figures."""
