"""What the writers and readers of one process share: scheduler thread, tail, callbacks."""
