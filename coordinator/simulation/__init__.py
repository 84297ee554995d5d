"""Devices, links and faults in virtual time."""
