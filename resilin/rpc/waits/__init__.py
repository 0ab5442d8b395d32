"""Tell, on demand, which calls workers wait for and run: what `resilin rpc` shows of a running job."""
