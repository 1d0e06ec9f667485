"""Access control: access keys, the permissions of each call, and TLS."""
