"""Time: the virtual clock and its loop, the real one, and mailboxes that wait on either."""
