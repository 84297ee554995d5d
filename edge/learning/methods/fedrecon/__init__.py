"""FedRecon matrix factorisation: settings, work, and the method."""
