"""The papers' tables: train and judge their rows, and what our runs say about their claims."""
