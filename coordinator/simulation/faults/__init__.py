"""Faults, by what they strike: each a class with its settings, what it does and what contradicts it."""
