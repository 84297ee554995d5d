"""What a device does and what it costs: participation, compute, energy and availability."""
