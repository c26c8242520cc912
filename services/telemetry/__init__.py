"""What a process measures of itself: one table of metrics and spans, and the instruments made from it."""
