"""Content that other programs wrote: its checksums are computed once, kept in a catalog, and compared from then on."""
