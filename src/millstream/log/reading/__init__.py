"""Reading a log: blocks in order, batches, consumers and their positions."""
