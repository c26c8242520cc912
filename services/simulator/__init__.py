"""Backlog lending under a virtual clock: scenarios, policies to compare, bounds, and reports."""
