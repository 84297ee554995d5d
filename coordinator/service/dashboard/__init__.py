"""A run as it goes on: one state that is fed by the run, and read by a page and by metrics."""
