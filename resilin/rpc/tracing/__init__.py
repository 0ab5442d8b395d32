"""Show calls in traces, and what they do at the callee in the caller's profile. Start in `spans.py`."""
