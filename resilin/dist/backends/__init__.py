"""How a group moves bytes: one file per way. `base` is the contract, `stream` and `shm` are the `cpu` backend."""
