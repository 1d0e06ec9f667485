"""The jobs: what they read, what they write, and the record that says that they are done."""
