"""A helper's desk: borrow, yield, return."""
