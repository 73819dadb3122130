"""Measurements of the packaged photo captioner on Flickr8k; each writes a file in results/."""
