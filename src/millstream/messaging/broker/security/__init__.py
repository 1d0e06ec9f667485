"""Who may call: access keys, the permissions of each call, and TLS."""
