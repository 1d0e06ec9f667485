"""The stored data of jobs: the folder and record of a run, the output of its tasks, the progress of a stream."""
