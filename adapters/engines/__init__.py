"""Engines behind one port: llama.cpp's server and any OpenAI-compatible URL."""
