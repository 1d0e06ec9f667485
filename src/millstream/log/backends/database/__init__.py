"""What logs in the tables of a database server have in common, whichever server it is."""
