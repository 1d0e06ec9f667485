"""HTTP interfaces for programs. Needs ``pip install 'millstream[serve]'``."""
