"""A broker that speaks the protocol of RocketMQ 5, on logs: official clients of any language use it unchanged.

A topic is a log, and a queue a share of it that exists for the clients' sake. What has been decided about messages
(who has which until when, what is done, what is held back) is written to a journal, itself a log.
"""
