"""Workers that live elsewhere: processes of this host, or actors of a Ray cluster, behind one protocol.

:class:`~coordinator.cluster.base.Cluster` starts named workers and hands them calls;
:mod:`~coordinator.cluster.jobs` spreads independent jobs over them and survives the loss of any.
"""
