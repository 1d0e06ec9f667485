"""What jobs keep: the folder and record of a run, the output of its tasks, the progress of a stream."""
