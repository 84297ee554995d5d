"""What survives the coordinator's process: the journal of a run, and going on from it."""
