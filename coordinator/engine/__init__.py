"""Rounds: who is invited, what is judged and summed, what is recorded. Imports no simulation."""
