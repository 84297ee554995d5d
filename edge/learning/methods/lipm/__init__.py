"""LIPM: the method, and the interest that a GRU reads from a user."""
