"""Measurements on scenes, each of which writes a file under `results/scenes/`."""
