"""Workers on the queues: pools, processors, tasks, how many there should be, and alarms."""
