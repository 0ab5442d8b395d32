"""One local page of the traces of all ranks: what is on it, who serves it, and the same as one file."""
