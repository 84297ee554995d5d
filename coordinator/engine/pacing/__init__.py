"""How stragglers are dealt with, beyond a deadline: one file an idea."""
