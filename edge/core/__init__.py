"""What everything else uses: vocabulary, errors, named random streams, the event log, the registry."""
