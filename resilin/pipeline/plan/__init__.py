"""Schedules of pipelines as plain data: generated, checked, timed, drawn, read and written. See README.md."""
