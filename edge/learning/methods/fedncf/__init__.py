"""FedNCF: settings, local training, uploads, work."""
