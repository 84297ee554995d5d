"""What devices, links and availability are like: units, documents, profiles and the catalogue."""
