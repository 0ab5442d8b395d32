"""Secrets of jobs that are tests: long enough to be taken, and known to everybody."""

SECRET = "a secret for tests alone"
OTHER_SECRET = "the secret of another job"
