"""Where logs are stored: memory, SQLite, segment files, MariaDB and MySQL, PostgreSQL, and the tables of nerve."""
