"""Healing: the vote on which bytes are right, and carrying it out."""
