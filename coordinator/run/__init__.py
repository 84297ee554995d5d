"""One run put together: from a loaded scenario to a run directory and a verdict."""
