"""The clients that are connected: sessions, commands to them, and what official clients need beyond the protocol."""
