"""Federated learning methods, one file each, behind one small protocol."""
