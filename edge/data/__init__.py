"""Ratings on devices: readers, the synthetic generator, splits and the store of local data."""
