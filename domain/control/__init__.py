"""Deciders of the control aggregates: links, nodes, settings."""
