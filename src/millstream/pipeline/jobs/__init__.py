"""The jobs that users start, a module each."""
