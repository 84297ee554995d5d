"""What travels: messages, their encoding, and sessions that survive a connection."""
