"""What a run leaves: events, tables, trace, summary, and their comparison."""
