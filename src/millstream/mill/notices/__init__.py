"""Notices to operators: alarms, and the receivers that deliver them."""
