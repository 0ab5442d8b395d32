"""ZeRO stages 2 and 3: gradients, and parameters, divided among the ranks. Begin reading in `shard.py`."""
