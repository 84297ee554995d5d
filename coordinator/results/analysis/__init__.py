"""What the tables of a run say beyond sums: who held rounds up, what was wasted, and whom it works for."""
