"""Secure aggregation on the coordinator's side: the machine that learns sums and nothing else."""
