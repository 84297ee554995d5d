"""A swarm: random scenarios with random faults, each of them checked by invariants.

Models: the simulation testing of FoundationDB (Zhou et al. 2021, "FoundationDB: A Distributed Unbundled
Transactional Key Value Store", section 4) and of TigerBeetle (its VOPR). A scenario is a pure function of the
swarm's seed and its number; whatever fails can be replayed by these two, and is shrunk to a scenario file.
"""
