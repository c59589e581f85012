"""Access to vLLM. Runs inside of the engine's image, which is not ours, and so imports the standard library only."""
