"""Pickles of strangers: read by a machine that runs nothing, at a cost that is bounded."""
