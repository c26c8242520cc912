"""Stored history is changed in every way that a disk, an accident or a forger can, and every change must be found."""
