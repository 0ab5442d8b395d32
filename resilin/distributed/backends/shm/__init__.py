"""Run collectives and send messages over memory that the processes of one host share."""
