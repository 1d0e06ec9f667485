"""What is known of a node now: counters, figures, history, disks, and the verdict on it (``status/verdict/``)."""
