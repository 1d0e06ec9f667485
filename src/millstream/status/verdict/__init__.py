"""The verdict on a node: all that is wrong, and all that is not known (``docs/explanation/verdict.md``)."""
