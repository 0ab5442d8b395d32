"""Autocast: which functions run in which dtype (`lists`), where it is enabled (`state`), and the casts (`casting`)."""
