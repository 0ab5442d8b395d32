"""Run the agent of a node: its loop, its workers' slots and streams, what it tells workers and people, how it ends."""
