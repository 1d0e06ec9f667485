"""The functions that run in the tasks of a job, on executors."""
