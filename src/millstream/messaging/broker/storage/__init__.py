"""What the broker keeps: topics as logs, the journal of its decisions, delayed messages, and their encoding."""
