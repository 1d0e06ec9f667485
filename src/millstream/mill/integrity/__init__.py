"""Bit integrity: the sources asked, the table that decides, and what is written down."""
