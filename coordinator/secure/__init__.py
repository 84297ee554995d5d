"""Sums of which nobody sees a part: masks and homomorphic encryption."""
