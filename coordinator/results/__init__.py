"""What a run leaves, and what is made of it: tables, verdicts, summary, report, comparison."""
