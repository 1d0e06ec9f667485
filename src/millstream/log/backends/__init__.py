"""The backends of logs: memory, SQLite, segment files, MariaDB and MySQL, PostgreSQL, and the tables of nerve."""
