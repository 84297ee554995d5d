"""Sweeps: many runs of one scenario on the workers of a cluster, and one table of their figures."""
