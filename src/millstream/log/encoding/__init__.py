"""How messages become the bytes of a block: columns, sections, codecs."""
