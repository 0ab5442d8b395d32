"""Connect ranks: listen, connect, and hand over to the next generation."""
