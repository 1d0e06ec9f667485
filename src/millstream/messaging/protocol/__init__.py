"""The wire protocol of RocketMQ 5 clients: messages, the service's methods, and statuses as errors.

``v2.proto`` is the source; ``make proto`` compiles it into ``v2.binpb``, from which :mod:`v2` makes the classes, and
``v2.pyi``, which gives them types.
"""
