"""Checkpoints and weights looked at from outside a job: listed, verified, compared, converted."""
