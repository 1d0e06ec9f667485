"""The processes that serve one node, on one host or several: members, the roles they own, and who owns which."""
