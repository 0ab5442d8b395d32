"""One twin per operation: argument checks and a numpy reference in Python, the hot path in cpu/*.cpp."""
