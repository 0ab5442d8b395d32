"""What we compare with. The only place that imports torch; run with the peer's own interpreter."""
