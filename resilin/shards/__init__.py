"""Fixed shards: what `ddp` and `zero` share, so that results do not depend on the number of ranks. See README.md."""
