"""What every floor may use: clock, environment, log fields, wire framing, handshakes, owned threads, trace hook."""
