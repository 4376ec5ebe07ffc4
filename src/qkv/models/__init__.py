"""Models: one file each, with its config, its module and its presets."""
