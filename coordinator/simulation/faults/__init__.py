"""Faults: one module for each kind, with its settings, what it does and what contradicts it."""
