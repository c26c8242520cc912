"""Makes a long history through the real bus: simulated nodes with the product's own machines, real producers, a real master."""
