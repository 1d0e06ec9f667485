"""Clients of RocketMQ 5: of Millstream's broker, and of Apache RocketMQ itself."""
