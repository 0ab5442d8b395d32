"""Carry messages over ZeroMQ. Start in `transport.py`."""

from resilin.rpc.transports.zeromq.transport import ZeroMQTransport

__all__ = ["ZeroMQTransport"]
