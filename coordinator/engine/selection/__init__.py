"""Who is invited: one file a policy, behind the interface in :mod:`coordinator.engine.selection.base`."""
