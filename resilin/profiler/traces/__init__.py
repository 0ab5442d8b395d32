"""Traces of many ranks read together: one time for all, one file, who waited for whom, and why."""
