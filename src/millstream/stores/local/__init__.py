"""The store in a local folder: plain files, with sidecars beside the spaces."""
