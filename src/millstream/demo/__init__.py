"""All steps on real data, from records to proofs: what ``millstream demo`` runs."""
