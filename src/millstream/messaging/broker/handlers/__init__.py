"""The calls of the protocol: one handler for each kind of call, from its request to its response."""
