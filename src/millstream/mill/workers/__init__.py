"""Workers on the queues: pools, processors, tasks, the recommended number of workers, and alarms."""
