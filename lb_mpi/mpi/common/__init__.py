"""What all doors carry their protocols with: one carrier, one transport, one presence, one failure."""
