"""Sums under homomorphic encryption (CKKS) on the coordinator's side: ciphertexts are added unread."""
