"""One agent's part of the job's records in the store: its own, the leader's, everybody's."""
