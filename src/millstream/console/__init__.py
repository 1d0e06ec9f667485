"""The web console: pages for people over the views that programs ask. Needs ``pip install 'millstream[serve]'``."""
