"""HTTP: ingress, the path to engines and helpers, streaming rewrite, errors."""
