"""User-level differential privacy: clipping, secret noise, and what a run has spent."""
