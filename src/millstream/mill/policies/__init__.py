"""Duplication policies: read, checked, compared and saved; each applies completely or not at all."""
