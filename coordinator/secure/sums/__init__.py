"""Secure sums of a run: what is agreed, both ends of each round, and what came out, by protocol."""
