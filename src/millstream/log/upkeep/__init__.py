"""Maintenance of logs: retention, trimming, verification, copies, and the migration of older stores."""
