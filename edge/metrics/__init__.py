"""Metrics of accuracy: errors of predicted ratings and quality of rankings, summed batch by batch."""
