"""Many small items of local stores, processed by child processes: one interpreter does not keep a disk busy.

What goes to such a process is file work alone (reading, hashing, writing, syncing), and what comes back is plain facts.
Databases, queues and the audit stay with the process that asks, which is the one writer it was before.

Nothing is imported here: each child would wait for it.
"""
