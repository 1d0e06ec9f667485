"""What is compared: our log in each of its stores, and others that keep messages."""
