"""What was changed at audited stores: the audit log, its tasks, its export, and what it fails to mention."""
