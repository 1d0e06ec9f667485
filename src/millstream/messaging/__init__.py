"""RocketMQ 5 messaging on the log: a broker that official clients use unchanged.

:mod:`millstream.messaging.protocol` is the wire protocol, :mod:`millstream.messaging.broker` the broker. Both need the
extra ``millstream[messaging]``.
"""
