"""The coordinator as a service: devices join it over sockets, on the real clock."""
