"""Readers of rating files, one module a family of formats."""
