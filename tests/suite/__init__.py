"""The suite itself: sizes and tiers of tests, what they cost, and how they are spread over processes and parts."""
