"""What travels and waits: sections, output queues, and the log of segments they are kept in."""
