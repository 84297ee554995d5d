"""Secure aggregation on the device: the primitives and the device's protocol machine."""
