"""Readers of what lies beside ratings: features of items, and their titles."""
