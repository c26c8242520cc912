"""The policies that can be compared. Each decides only; the world does."""
