"""What executors do: the functions that run in the tasks of a job."""
