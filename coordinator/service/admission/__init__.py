"""Who may come in: enrolment tokens, TLS, limits on connections, and a token for those who watch."""
