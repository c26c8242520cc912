"""The process that shows a cluster in a browser: it asks the others, and keeps nothing."""
