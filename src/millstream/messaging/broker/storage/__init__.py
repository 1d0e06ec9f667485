"""The stored data of the broker: topics as logs, the journal of its decisions, delayed messages, and their encoding."""
