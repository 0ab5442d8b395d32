"""Decide about membership, and what follows from failures: views in, decisions with reasons out. Pure."""
