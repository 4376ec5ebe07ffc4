"""The libraries that qkv is measured against, each in the shape that the workers ask for."""
