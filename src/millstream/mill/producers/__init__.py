"""The looping task producers: duplication and bit integrity, a loop over every space, a bite at a time.

A producer is called every few minutes. It resumes where it stopped, puts tasks on its queue until that is full, and
ends; what is left is in its state file (seed document, "Looping Duplication Task Producer").
"""
