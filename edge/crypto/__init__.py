"""Cryptography that secure aggregation and privacy share: keys, shares, streams, rings, noise."""
