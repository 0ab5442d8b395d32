"""Conversions between dtypes, devices, layouts and other libraries."""
