"""Private mask models of FedMMF: what a device fits to its own ratings and never sends."""
