"""The present state of a node: counters, figures, history, disks, and the verdict on it (``status/verdict/``)."""
