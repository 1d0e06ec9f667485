"""The running broker: the gRPC server, its methods, and the supervisor that replaces a failed core."""
