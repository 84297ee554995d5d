"""The coordinator: rounds, fleet, scenarios, runner, metrics and the command line."""
