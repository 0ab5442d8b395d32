"""Refer to values that lie at other workers. Start in `rref.py`."""
