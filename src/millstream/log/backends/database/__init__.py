"""Common parts of logs in the tables of any database server."""
