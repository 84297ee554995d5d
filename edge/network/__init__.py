"""How frames travel: the transport contract, the TCP model and the simulated network."""
