"""Begin and end: how the workers of a group meet, gather and leave."""
