"""Shared objects of the writers and readers of one process: scheduler thread, tail, callbacks."""
