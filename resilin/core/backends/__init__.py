"""Backends: what stands behind a device."""
