"""Move bytes of a group: one file per way. `base` is the contract, `socket` and `shm` are the `cpu` backend."""
