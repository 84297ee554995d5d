"""From telemetry of real devices to profiles: the table, its importers, estimators, and how well they fit."""
