"""What is copied where, as people write it: read, checked, compared, saved, and never half in force."""
