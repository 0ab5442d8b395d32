"""What one worker is: calls out, calls in, peers and threads. Start in `agent.py`."""
