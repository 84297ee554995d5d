"""Readers for other projects' traces: FedScale, Mahimahi and CSV."""
