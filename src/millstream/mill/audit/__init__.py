"""Changes of audited stores: the audit log, its tasks, its export, and its missing events."""
