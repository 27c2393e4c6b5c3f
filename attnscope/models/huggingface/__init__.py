"""Models of the transformers library: finding, loading, and preparing their inputs."""
