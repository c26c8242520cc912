"""The product's own machines under a virtual clock: domain.master decides, domain.runtime serves and lends."""
