"""A method, a fault and a selector for recfleet."""
