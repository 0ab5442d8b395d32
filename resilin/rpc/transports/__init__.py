"""Carry messages between workers."""
