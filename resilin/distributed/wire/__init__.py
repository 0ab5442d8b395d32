"""Encode what goes over a connection, plan the schedules of collectives, and record them."""
