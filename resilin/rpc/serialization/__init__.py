"""Make messages of calls and values, and read them. Start in `serializer.py`."""
